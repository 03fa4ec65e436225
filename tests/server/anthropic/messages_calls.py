"""Scripted engines, bodies and event streams for tests of Anthropic's dialect."""

from __future__ import annotations

from typing import Any

from tests.server.dialogues import CHAT
from tests.server.scripted import Script, ScriptedEngine

USER: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
BODY: dict[str, Any] = {"model": "scripted", "max_tokens": 50, "messages": USER}


def engine_that_says(*pieces: str, template: str = CHAT, **script: Any) -> ScriptedEngine:
    longer = {"max_model_len": 3000, **script}
    return ScriptedEngine(Script(pieces=pieces, **longer), template=template)
