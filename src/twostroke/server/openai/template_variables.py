"""Variables that a request has for the chat template, such as ``enable_thinking``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.core.operator.chat_template_config import OWN_VARIABLES
from twostroke.server.http.body_fields import check_unicode
from twostroke.text.chat_template import ChatTemplate
from twostroke.text.json_values import json_pieces

FIELD = "chat_template_kwargs"
# How chat templates call the choice whether to think.
THINKING_VARIABLES = ("enable_thinking", "thinking")


def template_variables(
    template: ChatTemplate, kwargs: Mapping[str, Any] | None, reasoning_effort: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The variables of ``chat_template_kwargs``, and ``reasoning_effort`` beside them.

    Those that the template reads, and the paths of the others.

    Raises:
        InvalidRequestError: One is the server's own, or holds what is not Unicode.
    """
    given = {f"{FIELD}.{name}": (name, value) for name, value in (kwargs or {}).items()}
    if reasoning_effort is not None:
        given.setdefault("reasoning_effort", ("reasoning_effort", reasoning_effort))
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for path, (name, value) in given.items():
        if name in OWN_VARIABLES:
            hint = "give it as a field of the request"
            raise InvalidRequestError(f"{path} is not a variable", param=path, hint=hint)
        if name not in template.variables:
            ignored.append(path)
            continue
        check_unicode(path, json_pieces(value))
        values[name] = value
    return values, ignored
