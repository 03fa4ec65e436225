"""Chat messages as clients send them, checked and brought into the form of templates."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_KINDS = ("text", "input_text", "output_text")


def check_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    rename_developer: bool = False,
    more_roles: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Copies of the messages whose content is a string and whose tool arguments are objects.

    Templates of text models take strings, so text parts are joined by newlines, as vLLM does.
    OpenAI sends tool arguments as JSON text, where templates expect the object. Other fields pass
    through.

    Args:
        rename_developer: Turn OpenAI's role `developer` into `system`, its older name.
        more_roles: That the model's template knows, besides ``ROLES``.

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
        _check_message(message, f"messages[{i}]", rename_developer, more_roles)
        for i, message in enumerate(messages)
    ]


def append_to_text(message: dict[str, Any], suffix: str) -> str:
    """Append to a checked message's text; returns what it was."""
    text: str = message["content"]
    message["content"] = text + suffix
    return text


def _check_message(
    message: object, path: str, rename_developer: bool, more_roles: Collection[str]
) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{path} must be an object, got {type(message).__name__}", param=path
        )
    role = message.get("role")
    if not isinstance(role, str) or not (role in ROLES or role in more_roles):
        roles = [*ROLES, *sorted(set(more_roles).difference(ROLES))]
        raise InvalidRequestError(
            f"{path}.role must be one of {', '.join(roles)}, got {ascii(role)[:80]}",
            param=f"{path}.role",
            hint="send a role that this model's chat template knows",
        )
    checked = dict(message)
    if role == "developer" and rename_developer:
        checked["role"] = "system"
    calls = message.get("tool_calls")
    checked["content"] = _text(message.get("content"), f"{path}.content", optional=bool(calls))
    if calls:
        checked["tool_calls"] = _check_tool_calls(calls, f"{path}.tool_calls")
    return checked


def _text(content: object, path: str, *, optional: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and optional:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise InvalidRequestError(f"{path} must be a string or a list of text parts", param=path)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind in _TEXT_KINDS and not isinstance(text, str):
            message = f"{path}[{i}].text must be a string, got {type(text).__name__}"
            raise InvalidRequestError(message, param=f"{path}[{i}]")
        if kind not in _TEXT_KINDS or not isinstance(text, str):
            raise InvalidRequestError(
                f"{path}[{i}] must be a text part, got type {ascii(kind)[:80]}",
                param=f"{path}[{i}]",
                hint='this server takes text only: {"type": "text", "text": ...}',
            )
        texts.append(text)
    return "\n".join(texts)


def _check_tool_calls(calls: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, (str, bytes)):
        raise InvalidRequestError(f"{path} must be a list", param=path)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(
                f"{path}[{i}].function must be an object with a name", param=f"{path}[{i}]"
            )
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            arguments = _parse_arguments(arguments, f"{path}[{i}].function.arguments")
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def _parse_arguments(text: str, path: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{path} is not valid JSON: {error}", param=path) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{path} must be a JSON object", param=path)
    return value
