"""Chat messages as clients send them, checked and brought into the one form that templates
expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_messages(
    messages: Sequence[Mapping[str, Any]], *, rename_developer: bool = False
) -> list[dict[str, Any]]:
    """Copies of the messages whose content is a string and whose tool arguments are objects.

    Templates of text models take strings, so text parts are joined by newlines, as vLLM does.
    OpenAI sends tool arguments as JSON text, where templates expect the object. Other fields pass
    through.

    Args:
        rename_developer: Turn OpenAI's role `developer` into `system`, its older name.

    Raises:
        InvalidRequestError: Naming the message and field that is malformed.
    """
    if (
        isinstance(messages, (str, bytes, Mapping))
        or not isinstance(messages, Sequence)
        or not messages
    ):
        raise InvalidRequestError("messages must be a non-empty list", param="messages")
    return [
        _check_message(message, f"messages[{i}]", rename_developer)
        for i, message in enumerate(messages)
    ]


def append_to_text(message: dict[str, Any], suffix: str) -> str:
    """Append to a checked message's text; returns what it was."""
    text: str = message["content"]
    message["content"] = text + suffix
    return text


def _check_message(message: object, where: str, rename_developer: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{where} must be an object, got {type(message).__name__}", param=where
        )
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}", param=f"{where}.role"
        )
    checked = dict(message)
    if role == "developer" and rename_developer:
        checked["role"] = "system"
    calls = message.get("tool_calls")
    checked["content"] = _text(message.get("content"), f"{where}.content", optional=bool(calls))
    if calls:
        checked["tool_calls"] = _check_tool_calls(calls, f"{where}.tool_calls")
    return checked


def _text(content: object, where: str, *, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts", param=where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise InvalidRequestError(
                f"{where}[{i}] must be a text part, got type {kind!r}",
                param=f"{where}[{i}]",
                hint=(
                    "this server takes text only; send images and audio to a model that reads them"
                ),
            )
        texts.append(text)
    return "\n".join(texts)


def _check_tool_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{where} must be a list", param=where)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"{where}[{i}].function must be an object with a name", param=f"{where}[{i}]"
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _parse_arguments(arguments, f"{where}[{i}].function.arguments")
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _parse_arguments(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not valid JSON: {error}", param=where) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} must be a JSON object", param=where)
    return value
