"""Calls whose streams are cut by the end of an engine, for tests and benchmarks."""

from __future__ import annotations

from typing import Any

_SCHEMA = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"type": "string"}, "maxItems": 9}},
    "required": ["steps"],
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
_FORM = {"type": "json_schema", "json_schema": {"name": "steps", "schema": _SCHEMA}}


def chat_calls(max_tokens: int) -> dict[str, dict[str, Any]]:
    """Bodies of chat completions by kind, whose answers have at most so many tokens."""
    question = {"role": "user", "content": "What is the KV cache?"}
    chat: dict[str, Any] = {"messages": [question], "max_tokens": max_tokens}
    return {
        "plain": chat,
        "JSON schema": {**chat, "response_format": _FORM},
        "tools": {**chat, "tools": [_TOOL], "tool_choice": "required"},
    }
