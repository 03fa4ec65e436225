"""From pydantic's complaints about a body to one sentence with the name of one field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic_core import PydanticCustomError

from twostroke.core.errors import InvalidRequestError

TEXT_ONLY = "this server takes text only: no images, audio or files"
_OTHER_MEDIA = ("image", "audio", "video", "file")  # as in image_url, input_audio
# Errors of an object that name one of its fields themselves.
_OF_WHOLE_BODY = ("unsupported_field", "given_twice", "known_elsewhere")
_UNION_TAGS = frozenset({"str", "int", "float", "bool", "dict", "list"})


def explained(message: str, hint: str = "") -> PydanticCustomError:
    """Make a validator say what is wrong with a value, and what to send instead."""
    return PydanticCustomError("explained", "{message}", {"message": message, "hint": hint})


def describe_validation(errors: Sequence[Any]) -> InvalidRequestError:
    """One sentence, with the field's name, for the first field that the validator names."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return InvalidRequestError(
            f"the body is not valid JSON: {first.get('ctx', {}).get('error', '')}"
        )
    if first["type"] == "string_unicode":
        # Values are checked later, so this is a key, of which only the place can be written.
        where = _field_name(first["loc"]) or "the body"
        return InvalidRequestError(
            f"{where} holds a key that is not Unicode", param=_field_name(first["loc"]) or None
        )
    if len(first["loc"]) < 2 and first["type"] not in _OF_WHOLE_BODY:
        hint = "send a JSON object, with the header Content-Type: application/json"
        return InvalidRequestError("the body must be a JSON object", hint=hint)
    # A union gives one error for each of its members; the one that got furthest was meant.
    same_field = [error for error in errors if error["loc"][:2] == first["loc"][:2]]
    error = max(same_field, key=lambda error: (error["type"] == "too_long", len(error["loc"])))
    param = _field_name(error["loc"])
    if error["type"] == "extra_forbidden":
        # The last part is the client's own word, even if it looks like a union's tag.
        return _unknown_field(_field_name(error["loc"][:-1]), str(error["loc"][-1]))
    if error["type"] == "known_elsewhere":
        return _unknown_field(param, error["ctx"]["field"], error["ctx"]["hint"])
    if error["type"] == "unsupported_field":
        param = f"{param}.{error['ctx']['field']}".lstrip(".")
        return InvalidRequestError(
            f"{param} is not supported by this server", param=param, hint=error["ctx"]["hint"]
        )
    if error["type"] == "given_twice":
        param = f"{param}.{error['ctx']['field']}".lstrip(".")
        message = f"{param} and {error['ctx']['other']} mean the same here, and differ"
        return InvalidRequestError(message, param=param, hint="give one of them")
    if error["type"] == "missing":
        return InvalidRequestError(f"{param} is missing", param=param)
    if error["type"] == "missing_field":
        param = f"{param}.{error['ctx']['field']}"
        message, hint = f"{param} is {error['ctx']['how']}", error["ctx"].get("hint")
        return InvalidRequestError(message, param=param, hint=hint)
    if error["type"] == "too_short":
        return InvalidRequestError(f"{param} is empty", param=param, hint="send at least one")
    if error["type"] == "too_long":
        limit = f"{error['ctx']['max_length']} {error['ctx'].get('of', 'items')}"
        return InvalidRequestError(
            f"{param} holds more than {limit}", param=param, hint="send fewer"
        )
    if error["type"] == "explained":
        message, hint = error["ctx"]["message"], error["ctx"]["hint"]
        return InvalidRequestError(f"{param}: {message}", param=param, hint=hint or None)
    texts = dict.fromkeys(e["msg"] for e in same_field if _field_name(e["loc"]) == param)
    message = f"{param}: " + " or ".join(text[0].lower() + text[1:] for text in texts)
    if error["type"] == "literal_error":
        message += f", got {_short(error['input'])}"
    return InvalidRequestError(message, param=param, hint=_hint(error))


def _hint(error: Any) -> str | None:
    """What to send instead of a word that is none of those taken: a kind of content, a role."""
    given = error["input"]
    if error["type"] != "literal_error" or not isinstance(given, str):
        return None
    if any(kind in given for kind in _OTHER_MEDIA):
        return TEXT_ONLY
    taken = re.findall(r"'([^']+)'", error["ctx"]["expected"])
    near = get_close_matches(given[:40], taken, n=1, cutoff=0.5)
    return f"send {near[0]!r}" if near else None


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _unknown_field(parent: str, name: str, hint: str | None = None) -> InvalidRequestError:
    name = name if len(name) <= 100 else name[:100] + "..."
    param = f"{parent}.{name}" if parent else name
    return InvalidRequestError(f"unknown field {param!r}", param=param, hint=hint)


def _field_name(loc: Sequence[str | int]) -> str:
    """``messages[0].content`` from pydantic's location, without the tags of unions."""
    name = ""
    for part in loc[1:]:
        if isinstance(part, int):
            name += f"[{part}]"
        elif part not in _UNION_TAGS and "[" not in part:
            name += f".{part}" if name else part
    return name
