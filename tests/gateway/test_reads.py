"""Protects: what one key reads waits behind itself; what a key may read of load is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tests.gateway.test_usage import ADMIN, ALICE, BOB, bearer, gateway_with_keys
from tests.server.scripted import Script, ScriptedEngine
from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import SCOPE_KEY, Caller
from twostroke.gateway.feeds import MAX_FEEDS, MAX_OF_ONE_KEY, Feeds
from twostroke.gateway.reads import COMPUTED_AT_ONCE, OF_ONE_KEY, PIECE_BYTES, ReadLimits
from twostroke.gateway.turns import MAX_WAITING
from twostroke.server.application import create_app
from twostroke.server.http.errors import error_response
from twostroke.server.options import ServerOptions

STEPS = "/v1/inspect/steps"


class Route:
    """Answers when it is told to.

    Attributes:
        begun: The keys of the requests that have come this far.
        may_answer: Each answer waits for it.
    """

    def __init__(self, size: int = 2, kind: str = "application/json") -> None:
        self.begun: list[str] = []
        self.may_answer = asyncio.Event()
        self._body, self._kind = b"x" * size, kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(scope[SCOPE_KEY].tenant)
        await self.may_answer.wait()
        await Response(self._body, media_type=self._kind)(scope, receive, send)


async def ask(limits: ReadLimits, key: str, path: str = STEPS, method: str = "GET") -> list[Any]:
    """The messages of the answer."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await limits({**scope, SCOPE_KEY: Caller(key)}, receive, send)
    return sent


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("path", "most"), [(STEPS, 1), ("/v1/models", OF_ONE_KEY)])
async def test_a_key_that_reads_much_waits_behind_itself(path: str, most: int) -> None:
    """Sixteen connections that each asked for the whole ring held up all keys."""
    route = Route()
    limits = ReadLimits(route, error_response)
    tasks = [asyncio.ensure_future(ask(limits, "hostile", path)) for _ in range(20)]
    await settled()
    assert route.begun == ["hostile"] * most
    tasks.append(asyncio.ensure_future(ask(limits, "light", path)))
    await settled()
    assert route.begun == ["hostile"] * most + ["light"]
    route.may_answer.set()
    assert {(await task)[0]["status"] for task in tasks} == {200}


@pytest.mark.parametrize(
    "path", ["/v1/files/f/content", "/v1/files/f/content\n", "/v1/messages/batches/b/results"]
)
@pytest.mark.parametrize("key", ["hostile", ""])
async def test_downloads_that_stall_leave_room_for_other_answers(key: str, path: str) -> None:
    """Sixteen stopped all GETs of their key, and where there are no keys those of all clients."""
    route, others = Route(), Route()
    others.may_answer.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (route if scope["path"] == path else others)(scope, receive, send)

    limits = ReadLimits(app, error_response)
    tasks = [asyncio.ensure_future(ask(limits, key, path)) for _ in range(OF_ONE_KEY + 1)]
    await settled()
    assert route.begun == [key] * OF_ONE_KEY
    tasks += [asyncio.ensure_future(ask(limits, key, small)) for small in ("/metrics", "/v1/files")]
    await settled()
    assert others.begun == [key] * 2
    route.may_answer.set()
    assert {(await task)[0]["status"] for task in tasks} == {200}


async def test_keys_take_turns_in_what_is_computed() -> None:
    route = Route()
    limits = ReadLimits(route, error_response)
    keys = ["a"] * 3 + ["b"] * 3 + ["c"]
    tasks = [asyncio.ensure_future(ask(limits, key)) for key in keys]
    await settled()
    assert route.begun == ["a", "b"] and len(route.begun) == COMPUTED_AT_ONCE
    route.may_answer.set()
    await asyncio.gather(*tasks)
    assert route.begun[2] == "c" and sorted(route.begun) == keys


async def test_a_key_rests_as_long_as_it_was_worked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    route = Route()
    limits = ReadLimits(route, error_response)
    loop, now = asyncio.get_running_loop(), 100.0
    monkeypatch.setattr(loop, "time", lambda: now)
    first = asyncio.ensure_future(ask(limits, "hostile"))
    await settled()
    now += 5.0
    route.may_answer.set()
    await first
    second = asyncio.ensure_future(ask(limits, "hostile"))
    await ask(limits, "light")
    assert route.begun == ["hostile", "light"]
    now += 5.1
    assert (await second)[0]["status"] == 200


async def test_of_too_many_the_last_are_refused() -> None:
    route = Route()
    limits = ReadLimits(route, error_response)
    tasks = [
        asyncio.ensure_future(ask(limits, "hostile", "/v1/files"))
        for _ in range(OF_ONE_KEY + MAX_WAITING)
    ]
    await settled()
    assert (await ask(limits, "hostile", "/v1/files"))[0]["status"] == 429
    route.may_answer.set()
    tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await ask(limits, "hostile", "/v1/files"))[0]["status"] == 200


async def test_health_and_calls_with_a_body_pass() -> None:
    route = Route()
    limits = ReadLimits(route, error_response)
    calls = [("/health", "GET"), ("/v1/completions", "POST")] * (OF_ONE_KEY + 1)
    tasks = [asyncio.ensure_future(ask(limits, "", path, method)) for path, method in calls]
    await settled()
    assert len(route.begun) == len(calls)
    route.may_answer.set()
    await asyncio.gather(*tasks)


async def test_large_answers_go_in_pieces() -> None:
    route = Route(size=2 * PIECE_BYTES + 1)
    route.may_answer.set()
    _, *pieces = await ask(ReadLimits(route, error_response), "a")
    assert [len(piece["body"]) for piece in pieces] == [PIECE_BYTES, PIECE_BYTES, 1]
    assert [piece.get("more_body", False) for piece in pieces] == [True, True, False]


async def test_as_many_keys_as_there_are_get_a_feed() -> None:
    """Four keys with eight feeds each shut out all others, the operator's too."""
    feeds = Feeds()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"frame"

    async def watch(key: str, *, admin: bool = False) -> AsyncIterator[bytes]:
        frames = feeds.counted(endless(), Caller(key, admin=admin))
        assert await anext(frames) == b"frame"
        return frames

    keys = [f"key {number}" for number in range(MAX_FEEDS // MAX_OF_ONE_KEY)]
    held = [await watch(key) for key in keys for _ in range(MAX_OF_ONE_KEY)]
    held += [await watch("light"), await watch("operator", admin=True)]
    for key in (*keys, "light"):
        with pytest.raises(QueueFullError, match="feeds of this server are open"):
            await watch(key)
    assert len(held) == MAX_FEEDS + 2


async def test_a_key_reads_its_own_load(tmp_path: Path) -> None:
    """``/load`` and the cache's tiers told each key what all others did."""
    engine = ScriptedEngine(Script(endless=True, seconds_per_step=0.01))
    app = create_app(engine.loaded_model(), ServerOptions(), gateway_with_keys(tmp_path))
    body = {"prompt": "the dog", "stream": True}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test"
    ) as client:
        running = asyncio.ensure_future(
            client.post("/v1/completions", json=body, headers=bearer(ALICE))
        )
        while not engine.submitted:
            await asyncio.sleep(0)

        async def read(path: str, key: str) -> Any:
            return (await client.get(path, headers=bearer(key))).json()

        loads = [(await read("/load", key))["server_load"] for key in (ALICE, BOB, ADMIN)]
        assert loads == [1, 0, 1]
        assert (await read("/v1/cache", BOB))["tiers"] == []
        running.cancel()
