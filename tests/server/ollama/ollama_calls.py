"""Scripted engines and bodies for tests of Ollama's dialect."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.server.dialogues import CHAT
from tests.server.http_calls import client_for
from tests.server.scripted import Script, ScriptedEngine

USER: list[Any] = [{"role": "user", "content": "hi"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TEXT = "the quick brown fox"


def engine_that_says(*pieces: str, template: str = CHAT, **script: Any) -> ScriptedEngine:
    fields: dict[str, Any] = {"max_model_len": 3000, **script}
    if pieces:
        fields["pieces"] = pieces
    return ScriptedEngine(Script(**fields), template=template)


async def post(engine: ScriptedEngine, path: str, body: object, **options: Any) -> httpx.Response:
    """One request below ``/api/``."""
    async with client_for(engine, **{"served_model_name": ("scripted",), **options}) as client:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        headers = {"content-type": "application/json"}
        return await client.post(f"/api/{path}", content=content, headers=headers)


async def chat(engine: ScriptedEngine, **fields: Any) -> httpx.Response:
    """A whole answer, unless ``fields`` ask for a stream."""
    return await post(engine, "chat", {"messages": USER, "stream": False, **fields})


def lines_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]
