"""Chat messages to one prompt text: the checkpoint's Jinja template, rendered in a sandbox.

The result is that of `transformers`. The sandbox stops templates from reaching Python's internals,
and every rendering has a budget of steps, characters and seconds (`template_budget.py`). Templates
come from the checkpoint or the operator, never from a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError

from twostroke.core.errors import (
    InvalidRequestError,
    ModelLoadError,
    RequestTooLargeError,
    TwostrokeError,
)
from twostroke.text.chat_messages import append_to_text, check_messages
from twostroke.text.json_values import json_pieces
from twostroke.text.template_budget import RenderBudget
from twostroke.text.template_roles import roles_in
from twostroke.text.template_sandbox import BUDGET, BoundedSandbox
from twostroke.text.tokenizer import Tokenizer

MAX_PROMPT_CHARS = 16_000_000
MAX_TEMPLATE_CHARS = 500_000  # the longest that are in use have some 30,000
MAX_MESSAGE_CHARS = 1000  # of an error that a template raises
SLOW_SECONDS = 0.01
_BROKEN = "the checkpoint's template is broken; give another one"
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "  # the space shows whether the template trims


class ChatTemplate:
    """The chat template of one model.

    Args:
        sources: One Jinja source, or several by name; `tool_use` serves requests with tools,
            `rag` for those with documents, else `default`.
        special_tokens: Available to the template under their names (`bos_token` ...).
        defaults: Its variables where a rendering has none of that name.
        now: The time that `strftime_now` formats.

    Raises:
        ModelLoadError: If a source is not valid Jinja.
    """

    def __init__(
        self,
        sources: str | Mapping[str, str] | None,
        special_tokens: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, Any] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        named = {"default": sources} if isinstance(sources, str) else dict(sources or {})
        self._special_tokens = dict(special_tokens or {})
        self._defaults = dict(defaults or {})
        self._environment = _environment(now)
        self._sources = named
        self._templates = {name: self._compile(name, source) for name, source in named.items()}
        # OpenAI renamed "system" to "developer"; older templates do not know the new role.
        self._renames_developer = not any("developer" in source for source in named.values())

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> ChatTemplate:
        return cls(
            tokenizer.chat_templates,
            tokenizer.special_tokens,
            defaults=tokenizer.template_defaults,
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt text, special tokens included: encode it with `add_special_tokens=False`.

        Args:
            messages: Messages of the OpenAI API; contents are a string or text parts (joined by
                newlines).
            add_generation_prompt: End with the start of the assistant's turn.
            tools: JSON schemas, passed on to the template.
            continue_final_message: Leave the last message open, so that the model goes on with it.
            variables: More variables for the template (`enable_thinking` ...); they win over
                special tokens.

        Raises:
            InvalidRequestError: If the messages are malformed, there is no template, or the
                template refuses them.
            RequestTooLargeError: If the text is too long for any model.
            ModelLoadError: If the template tries what the sandbox forbids.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "add_generation_prompt and continue_final_message exclude each other",
                param="continue_final_message",
            )
        chat = check_messages(
            messages, rename_developer=self._renames_developer, more_roles=self.roles
        )
        final_text = append_to_text(chat[-1], _MARK) if continue_final_message else ""
        variables = {**self._defaults, **variables}
        context = {
            **self._special_tokens,
            **variables,
            "messages": chat,
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": variables.get("documents"),
            "add_generation_prompt": add_generation_prompt,
            BUDGET: RenderBudget(_num_chars(chat, tools, variables)),
        }
        text = _render(
            self._templates[self._choose(bool(tools), bool(context["documents"]))], context
        )
        return _cut_at_mark(text, final_text) if continue_final_message else text

    @cached_property
    def is_slow(self) -> bool:
        """Whether a short conversation takes more than ``SLOW_SECONDS`` of processor time.

        Measured twice at most: the first rendering may have to wait for caches.
        """
        return all(self._short_seconds() > SLOW_SECONDS for _ in range(2))

    def _short_seconds(self) -> float:
        began = time.thread_time()
        with suppress(TwostrokeError):
            self.render([{"role": "user", "content": "x"}])
        return time.thread_time() - began

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the templates read and do not set."""
        parsed = map(self._environment.parse, self._sources.values())
        return frozenset().union(*map(meta.find_undeclared_variables, parsed))

    @cached_property
    def roles(self) -> frozenset[str]:
        """Roles of messages that the templates ask for."""
        parsed = map(self._environment.parse, self._sources.values())
        return frozenset().union(*map(roles_in, parsed))

    @cached_property
    def writes_documents(self) -> bool:
        """Whether the template itself writes `documents`."""
        source = self._sources.get(self._choose(with_tools=False, with_documents=True), "")
        return "documents" in meta.find_undeclared_variables(self._environment.parse(source))

    @cached_property
    def writes_system(self) -> bool:
        """Whether the template takes a system message; some refuse it, some leave it out."""
        probe = [{"role": "system", "content": "PROBE"}, {"role": "user", "content": "x"}]
        try:
            return "PROBE" in self.render(probe)
        except InvalidRequestError:
            return False

    def _choose(self, with_tools: bool, with_documents: bool) -> str:
        names = ["tool_use"] * with_tools + ["rag"] * with_documents
        name = next((name for name in names if name in self._templates), "default")
        if name not in self._templates:
            raise InvalidRequestError(
                "this model has no chat template",
                param="messages",
                hint="use the completions endpoint, or start the server with a chat template",
            )
        return name

    def _compile(self, name: str, source: str) -> Template:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelLoadError(
                f"chat template {name!r} has {len(source)} characters, at most"
                f" {MAX_TEMPLATE_CHARS} are compiled",
                hint=_BROKEN,
            )
        try:
            return self._environment.compiled(source)
        except TemplateSyntaxError as error:
            raise ModelLoadError(
                f"chat template {name!r}, line {error.lineno}: {error.message}", hint=_BROKEN
            ) from error
        except Exception as error:  # Python compiles it in the end, and may fail with nearly any
            raise ModelLoadError(
                f"chat template {name!r} cannot be compiled: {error}", hint=_BROKEN
            ) from error


def _num_chars(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
) -> int:
    """Characters of what a template is given; it raises ``RequestTooLargeError`` of too many."""
    count = sum(len(message["content"]) for message in messages)
    if count > MAX_PROMPT_CHARS:
        raise _too_long(count)
    rest = [message for message in messages if len(message) > 2]  # role and content
    if rest or tools or variables:
        values = [rest, tools, variables]
        count += sum(map(len, json_pieces(values, default=str, skipkeys=True)))
    return count


def _too_long(num_chars: int) -> RequestTooLargeError:
    # Long messages do this to any template, so it is not the template's error.
    return RequestTooLargeError(
        f"the chat template writes more than {MAX_PROMPT_CHARS} characters for these messages",
        needed=num_chars,
        available=MAX_PROMPT_CHARS,
        param="messages",
        hint="send fewer or shorter ones",
    )


def _environment(now: Callable[[], datetime]) -> BoundedSandbox:
    """Filters and globals as in `transformers.utils.chat_template_utils`."""

    def raise_exception(message: str) -> None:
        raise TemplateError(str(message)[:MAX_MESSAGE_CHARS])

    def strftime_now(layout: str) -> str:
        return now().strftime(layout[:MAX_MESSAGE_CHARS])

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        pieces = json_pieces(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return "".join(pieces)

    environment = BoundedSandbox()
    environment.add_filter("tojson", to_json)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _render(template: Template, context: dict[str, Any]) -> str:
    pieces, length = [], 0
    try:
        for piece in template.generate(context):
            length += len(piece)
            if length > MAX_PROMPT_CHARS:
                raise _too_long(length)
            pieces.append(piece)
    except SecurityError as error:
        raise ModelLoadError(
            f"the chat template did something forbidden: {error}",
            hint="the checkpoint's template is unsafe or broken; give another one",
        ) from error
    except (RequestTooLargeError, MemoryError):
        raise
    except Exception as error:  # templates can fail with any, from `raise_exception` to TypeError
        raise InvalidRequestError(
            f"the chat template does not accept these messages: {str(error)[:MAX_MESSAGE_CHARS]}",
            param="messages",
            hint="check the order of roles and which fields this model's template supports",
        ) from error
    return "".join(pieces)


def _cut_at_mark(text: str, final_text: str) -> str:
    """The rendered text up to the mark; as in transformers, trimmed if the template trims."""
    position = text.rfind(_MARK.strip())
    if position < 0 or final_text.strip() not in text:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not write out the last message",
            param="continue_final_message",
            hint="this model's template changes or drops it; use the completions endpoint",
        )
    return text[:position] if text.startswith(_MARK, position) else text[:position].rstrip()
