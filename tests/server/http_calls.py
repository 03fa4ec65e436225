"""Calls the application without a network, and reads event streams."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx

from tests.server.scripted import ScriptedEngine
from twostroke.server.application import create_app
from twostroke.server.options import ServerOptions

USER: list[Any] = [{"role": "user", "content": "the dog"}]


@cache
def any_engine() -> ScriptedEngine:
    """For calls of which only the answer is looked at."""
    return ScriptedEngine()


def client_for(engine: ScriptedEngine, **options: Any) -> httpx.AsyncClient:
    """Of the engine's one application with these options: it takes longer to make than to ask."""
    key = repr(sorted(options.items()))
    app = engine.applications.get(key)
    if app is None:
        app = create_app(engine.loaded_model(), ServerOptions(**options))
        engine.applications[key] = app
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


async def post(engine: ScriptedEngine, path: str, body: object, **options: Any) -> httpx.Response:
    """One request; lone surrogates and the like travel as JSON escapes."""
    async with client_for(engine, **options) as client:
        content = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return await client.post(
            "/v1/" + path, content=content, headers={"content-type": "application/json"}
        )


async def chat(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    response = await post(engine, "chat/completions", {"messages": USER, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def complete(engine: ScriptedEngine, **fields: Any) -> dict[str, Any]:
    response = await post(engine, "completions", {"prompt": "the dog", **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def stream(engine: ScriptedEngine, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which must end with ``[DONE]``."""
    response = await post(engine, path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-2])
    return [json.loads(event[6:]) for event in events[:-2]]
