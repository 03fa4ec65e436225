"""`--max-logprobs-memory` over HTTP: what calls in flight may keep, together."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Message

from tests.server.http_calls import client_for
from tests.server.scripted import Script, ScriptedEngine
from twostroke.server.application import create_app_for
from twostroke.server.generation.delivery import PromptRoom
from twostroke.server.options import ServerOptions
from twostroke.server.state.logprobs_budget import LOGPROB_BYTES, LogprobsBudget
from twostroke.server.state.server_state import ServerState

MEMORY = 2**20  # some 2,000 log-probabilities
# 1,680 of them: more than half.
CALL: dict[str, Any] = {"prompt": [5], "n": 20, "max_tokens": 4, "logprobs": 20}
PATH, CHAT_PATH = "/v1/completions", "/v1/chat/completions"
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "x"}],
    "logprobs": True,
    "top_logprobs": 20,
    "max_tokens": 4,
    "n": 20,
}
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": PATH,
    "headers": [(b"content-type", b"application/json")],
    "query_string": b"",
}


def server(engine: ScriptedEngine) -> tuple[Any, ServerState]:
    options = ServerOptions(max_logprobs_memory=MEMORY)
    state = ServerState(engine.loaded_model(), options)
    return create_app_for(state, options), state


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_a_call_over_what_is_left_is_a_429_until_others_are_answered() -> None:
    """Each call was within its bound; together they took the memory of the process."""
    app, state = server(ScriptedEngine(Script(seconds_per_step=0.1)))
    async with client_of(app) as client:
        first = asyncio.ensure_future(client.post(PATH, json=CALL))
        while not state.model().logprobs.num_held_bytes:
            await asyncio.sleep(0.01)
        refused = await client.post(PATH, json=CALL)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "logprobs_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert "--max-logprobs-memory" in refused.json()["error"]["message"]
        plain = await client.post(PATH, json={**CALL, "logprobs": None})
        assert plain.status_code == 200
        assert (await first).status_code == 200
        assert state.model().logprobs.num_held_bytes == 0
        assert (await client.post(PATH, json=CALL)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (PATH, {**CALL, "n": 40}, "logprobs"),
        (CHAT_PATH, {**CHAT, "n": 40}, "top_logprobs"),
    ],
)
async def test_a_call_that_never_has_room_is_a_400(
    path: str, body: dict[str, Any], param: str
) -> None:
    async with client_for(ScriptedEngine(), max_logprobs_memory=MEMORY) as client:
        response = await client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert "--max-logprobs-memory" in response.json()["error"]["message"]


async def test_an_answer_without_a_length_ends_when_it_has_grown_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twostroke.server.generation.memory_limits.OPEN_ENDED_TOKENS", 1)
    engine = ScriptedEngine()
    app, state = server(engine)
    async with client_of(app) as client:
        short = {**CHAT, "max_tokens": None}
        assert (await client.post(CHAT_PATH, json=short)).status_code == 200
        response = await client.post(CHAT_PATH, json={**short, "n": 90})
    assert (response.status_code, response.json()["error"]["code"]) == (429, "logprobs_full")
    assert "send max_tokens" in response.json()["error"]["message"]
    assert len(engine.aborted) == 1 and state.model().logprobs.num_held_bytes == 0


async def test_a_refused_call_gives_its_room_back() -> None:
    engine = ScriptedEngine(Script(refuse=ValueError("a bug")))  # type: ignore[arg-type]
    app, state = server(engine)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post(PATH, json=CALL)).status_code == 500
    assert state.model().logprobs.num_held_bytes == 0


async def test_a_stream_holds_only_what_its_client_has_not_taken() -> None:
    """A client that reads holds nothing; one that does not has its part of the budget, no more."""
    app, state = server(ScriptedEngine(Script(endless=True, seconds_per_step=0.001)))
    budget, taking = state.model().logprobs, asyncio.Event()
    held, errors = list[int](), list[bytes]()
    body = b'{"prompt": [5], "logprobs": 20, "stream": true, "n": 4}'
    requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: Message) -> None:
        if message["type"] != "http.response.body":
            return
        held.append(budget.num_held_bytes)
        if b'"error"' in message["body"]:
            errors.append(message["body"][-600:])
        if len(held) > 50:
            await taking.wait()

    call = asyncio.ensure_future(app(dict(SCOPE), receive, send))
    while len(held) <= 50:
        await asyncio.sleep(0.01)
    assert max(held[:50]) < 64 * 2**10  # an event or two
    while budget.num_held_bytes < MEMORY // 2:
        await asyncio.sleep(0.01)
    while state.model().client.status.stats.num_running:  # until it holds too much, and is ended
        await asyncio.sleep(0.01)
        assert budget.num_held_bytes <= MEMORY
    taking.set()
    await call
    assert b"logprobs_full" in errors[0] and budget.num_held_bytes == 0


async def test_a_large_answer_holds_its_room_until_it_is_taken() -> None:
    app, state = server(ScriptedEngine(Script(pieces=("word",) * 40)))
    budget, held = state.model().logprobs, list[int]()
    body = b'{"prompt": [5], "logprobs": 20, "n": 2, "max_tokens": 40}'
    requests: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: Message) -> None:
        await asyncio.sleep(0.01)
        held.append(budget.num_held_bytes)

    await app(dict(SCOPE), receive, send)
    assert set(held) == {2 * 40 * 21 * LOGPROB_BYTES} and budget.num_held_bytes == 0


ECHO: dict[str, Any] = {"echo": True, "logprobs": 20, "stream": True, "max_tokens": 2}


async def test_a_streamed_echo_has_room_for_its_prompts_or_is_refused() -> None:
    """Prompts were kept until the stream's end, and not counted: 300 MB within 16 MiB."""
    app, state = server(ScriptedEngine())
    async with client_of(app) as client:
        response = await client.post(PATH, json={**ECHO, "prompt": [[5] * 60, [6] * 60]})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "logprobs")
        response = await client.post(PATH, json={**ECHO, "prompt": [[5] * 30, [6] * 30]})
        assert response.status_code == 200 and response.text.endswith("[DONE]\n\n")
    assert state.model().logprobs.num_held_bytes == 0


def test_a_prompt_is_held_until_all_its_samples_have_echoed_it() -> None:
    budget = LogprobsBudget(MEMORY)
    entries = [30, 40]
    room = PromptRoom(budget.reserve("", 70 * LOGPROB_BYTES), entries, 2)
    for choice, num_held in ((0, 70), (2, 70), (1, 40), (3, 0)):
        room.begin(choice)
        room.hold(7)
        assert budget.num_held_bytes == num_held * LOGPROB_BYTES + 7
