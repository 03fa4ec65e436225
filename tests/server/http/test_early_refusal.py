"""What would come too late is refused before its body is parsed, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.http_calls import USER, client_for, post
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import PredictedLateError
from twostroke.http.body_size import SMALL_BODY

TEXT: dict[str, Any] = {"prompt": "the dog", "max_tokens": 4}


def overloaded() -> ScriptedEngine:
    late = PredictedLateError("it would come too late", retry_after=7, hint="try again later")
    return ScriptedEngine(Script(refuse_early=late))


@pytest.mark.parametrize("path", ["completions", "chat/completions", "messages", "responses"])
async def test_a_refusal_needs_no_body(path: str) -> None:
    """Not even one that can be read; in the dialect's own shape."""
    response = await post(overloaded(), path, b"\xff no JSON")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert error["type"] == "rate_limit_error" and "too late" in error["message"]
    assert (response.json().get("type") == "error") == (path == "messages")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_a_refusal_of_ollamas_api_has_its_shape(path: str) -> None:
    """These calls were parsed, checked and tokenised before they were refused."""
    async with client_for(overloaded()) as client:
        response = await client.post(path, content=b"\xff no JSON")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "7"
    error = response.json().pop("error")
    assert "too late" in error and list(response.json()) == ["error"]


async def test_a_call_with_a_time_of_its_own_is_left_to_its_route() -> None:
    """It may have more time than its key: its route takes the body, as it was sent."""
    response = await post(overloaded(), "completions", TEXT | {"deadline_ms": 60_000})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "deadline_ms")


async def test_a_large_body_is_left_to_its_route() -> None:
    response = await post(overloaded(), "completions", TEXT | {"user": "u" * SMALL_BODY})
    assert response.status_code != 429


async def test_a_body_of_unknown_length_is_left_to_its_route() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield json.dumps(TEXT).encode()

    async with client_for(overloaded()) as client:
        kind = {"content-type": "application/json"}
        response = await client.post("/v1/completions", content=pieces(), headers=kind)
    assert response.status_code == 200


async def test_what_has_no_first_token_is_not_refused() -> None:
    engine = overloaded()
    assert (await post(engine, "tokenize", {"prompt": "the dog"})).status_code != 429
    async with client_for(engine) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_without_overload_bodies_arrive_whole() -> None:
    engine = ScriptedEngine(Script())
    assert (await post(engine, "chat/completions", {"messages": USER})).status_code == 200
