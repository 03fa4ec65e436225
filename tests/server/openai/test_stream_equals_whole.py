"""The pieces of a stream, joined, are the whole answer: text, reasons, log-probabilities.

A real model over the HTTP layer. Its answers are random bytes, so pieces end amid characters, and
stop strings are taken from the answers themselves, so they are met, across pieces too.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.tiny import VOCAB, tiny_engine
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.server.application import create_app

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    with tiny_engine() as engine:
        yield engine


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "seed": draw(st.integers(0, 2**32)),
        "temperature": draw(st.sampled_from([0, 0.8, 1.5])),
        "n": draw(st.sampled_from([1, 1, 2])),
        "max_tokens": draw(st.integers(1, 24)),
        "ignore_eos": draw(st.booleans()),
        "skip_special_tokens": draw(st.booleans()),
        "include_stop_str_in_output": draw(st.booleans()),
        "return_token_ids": True,
    }
    if draw(st.booleans()):
        body["bad_words"] = [draw(st.text("etaoin 你é", min_size=1, max_size=3))]
    if draw(st.booleans()):
        body["messages"] = [{"role": "user", "content": draw(st.text(max_size=12))}]
        body["logprobs"] = draw(st.booleans())
        return CHAT, body
    body["prompt"] = draw(st.lists(st.integers(2, VOCAB - 1), min_size=1, max_size=12))
    body["echo"] = draw(st.booleans())
    if not body["echo"]:
        body["logprobs"] = draw(st.sampled_from([None, 0, 2]))
    return TEXT, body


@given(bodies(), st.floats(0, 1), st.integers(1, 6))
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_streamed_equals_whole(
    engine: AsyncEngine, asked: tuple[str, dict[str, Any]], stop_at: float, stop_length: int
) -> None:
    asyncio.run(check(engine, *asked, stop_at, stop_length))


async def check(
    engine: AsyncEngine, path: str, body: dict[str, Any], stop_at: float, stop_length: int
) -> None:
    """Ask for an answer, then for the same answer up to a stop string that is a piece of it."""
    transport = httpx.ASGITransport(create_app(engine.loaded_model()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        free = await ask(client, path, body)
        assert await ask_streaming(client, path, body) == free
        text = free["choices"][0]["text"]
        start = int(stop_at * len(text))
        stop = text[start : start + stop_length]
        if not stop:
            return
        limited = {**body, "stop": [stop, "never written"]}
        stopped = await ask(client, path, limited)
        assert await ask_streaming(client, path, limited) == stopped
        prompts = [len(await prompt_text(client, body)) if body.get("echo") else 0] * len(
            free["choices"]
        )
        for choice, whole, skip in zip(stopped["choices"], free["choices"], prompts, strict=True):
            check_stopped(choice, whole, stop, skip, kept=body["include_stop_str_in_output"])


def check_stopped(
    choice: dict[str, Any], whole: dict[str, Any], stop: str, skip: int, *, kept: bool
) -> None:
    """The answer ends at the first occurrence, and the stop string is shown only if asked for."""
    text = whole["text"]
    position = text.find(stop, skip)
    if position < 0:
        # Not the log-probabilities: it ran on alone where another sample stopped, which can move a
        # last bit.
        assert (text, whole["token_ids"]) == (choice["text"], choice["token_ids"])
        return
    assert choice["text"] == text[: position + len(stop) if kept else position]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def prompt_text(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    scored = {"prompt": body["prompt"], "echo": True, "max_tokens": 0}
    answer = (await client.post(TEXT, json=scored)).json()
    text: str = answer["choices"][0]["text"]
    return text


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, without what is made anew for each call."""
    response = await client.post(path, json=alone(body))
    assert response.status_code == 200, response.text
    answer = response.json()
    choices = [merge([choice], path) for choice in answer["choices"]]
    return {"choices": choices, "usage": answer["usage"]}


async def ask_streaming(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> dict[str, Any]:
    """The same, put together from events."""
    response = await client.post(path, json={**alone(body), **USAGE})
    assert response.status_code == 200, response.text
    *events, done, end = response.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *chunks, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert last["choices"] == [] and all(chunk["usage"] is None for chunk in chunks)
    pieces: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        pieces.setdefault(choice["index"], []).append(choice)
    assert all(
        piece["finish_reason"] is None for choice in pieces.values() for piece in choice[:-1]
    )
    choices = [merge(pieces[index], path) for index in sorted(pieces)]
    return {"choices": choices, "usage": last["usage"]}


def merge(pieces: list[dict[str, Any]], path: str) -> dict[str, Any]:
    """One choice of either kind, from one piece or many."""
    texts = [
        piece.get("text") if path == TEXT else message(piece).get("content") for piece in pieces
    ]
    merged: dict[str, Any] = {
        "text": "".join(text or "" for text in texts),
        "token_ids": [token for piece in pieces for token in piece.get("token_ids", [])],
        "finish_reason": pieces[-1]["finish_reason"],
        "stop_reason": pieces[-1].get("stop_reason"),
        "logprobs": {},
    }
    for piece in pieces:
        for name, values in (piece["logprobs"] or {}).items():
            merged["logprobs"].setdefault(name, []).extend(values or [])
    return merged


def message(piece: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = piece["message"] if "message" in piece else piece["delta"]
    return message


def alone(body: dict[str, Any]) -> dict[str, Any]:
    """Without cached blocks: their sums can differ in the last bit of a float."""
    return {**body, "cache_salt": uuid.uuid4().hex}
