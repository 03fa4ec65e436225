"""Protects: no request waits for a Redis that is away, and no count is lost when it is back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn
from limits.aio.strategies import FixedWindowRateLimiter

from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.gateway.redis_servers import NO_REDIS, MortalRedis, has_redis, mortal_redis
from tests.server.scripted import ScriptedEngine
from twostroke.core.errors import LimitStorageError
from twostroke.core.network.address import Address
from twostroke.core.output import RequestOutput
from twostroke.engine.clients.base import ChargedTokens
from twostroke.gateway.gateway import Gateway
from twostroke.gateway.limits import Limits
from twostroke.gateway.options import GatewayOptions
from twostroke.gateway.tally import Tally
from twostroke.server.application import create_app
from twostroke.server.http.lifecycle import uvicorn_config
from twostroke.server.options import ServerOptions
from twostroke.server.process import listen

LOGGER = "twostroke.gateway.limit_storage"
# What one question may take, and what the machine may add.
TIMEOUT, SLACK = 0.9, 1.5
TICK = 0.02
BACK_WITHIN = 15.0
KINDS = [
    pytest.param("real", marks=pytest.mark.skipif(not has_redis(), reason=NO_REDIS)),
    pytest.param("fake"),
]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalRedis]:
    with mortal_redis(request.param, tmp_path) as server:
        yield server


class EndedStream:
    """An ``OutputStream`` of a request that ends when the test says so."""

    usage = ChargedTokens(0, 0)

    def listen(self, on_output: object) -> None:
        raise AssertionError("the tally does not listen")

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        raise AssertionError("the tally reads no outputs")

    def abort(self) -> None:
        """Nothing runs."""

    def when_ended(self, on_end: object) -> None:
        assert callable(on_end)
        self.end = on_end


def limits(server: MortalRedis, **amounts: Any) -> Limits:
    return Limits(GatewayOptions(rate_limit_storage=server.url, **amounts))


async def answers_again(counting: Limits) -> None:
    deadline = time.monotonic() + BACK_WITHIN
    while True:
        try:
            await counting.count_request("anybody")
            return
        except LimitStorageError:
            assert time.monotonic() < deadline, "it does not look for its storage"
            await asyncio.sleep(0.05)


async def refused(counting: Limits, count: int) -> float:
    """Seconds until ``count`` requests at once were all refused, without the loop's delays."""
    began = time.monotonic()
    async with measured_delays() as delays:
        answers = await asyncio.gather(
            *(counting.count_request("a") for _ in range(count)), return_exceptions=True
        )
    assert {type(answer) for answer in answers} == {LimitStorageError}
    return time.monotonic() - began - sum(delays)


@asynccontextmanager
async def measured_delays() -> AsyncIterator[list[float]]:
    """How much longer than it meant to a task slept, each time: a busy machine delays it, a
    request that waits for its storage does not."""
    delays: list[float] = []

    async def sleep() -> None:
        while True:
            began = time.monotonic()
            try:
                await asyncio.sleep(TICK)
            finally:
                delays.append(max(0.0, time.monotonic() - began - TICK))

    sleeping = asyncio.ensure_future(sleep())
    await asyncio.sleep(0)
    try:
        yield delays
    finally:
        sleeping.cancel()
        await asyncio.wait([sleeping])


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the storage has been asked for, without those of the probe."""
    asked: list[str] = []
    hit = FixedWindowRateLimiter.hit

    async def noted_hit(self: Any, item: Any, *names: str, cost: int = 1) -> bool:
        if names != ("probe",):
            asked.append(names[0])
        return await hit(self, item, *names, cost=cost)

    monkeypatch.setattr(FixedWindowRateLimiter, "hit", noted_hit)
    return asked


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of the storage, and nothing else of the gateway."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("twostroke.gateway")]


@pytest.mark.parametrize("how", ["kill", "stall"])
async def test_only_the_first_requests_wait(
    server: MortalRedis, how: str, questions: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than the pool has connections: no queue of timeouts."""
    counting = limits(server, requests_per_minute=10_000, tokens_per_minute=10_000)
    await counting.count_request("a")
    getattr(server, how)()
    assert await refused(counting, 200) < TIMEOUT + SLACK
    assert questions
    questions.clear()
    for _ in range(3):
        await refused(counting, 200)
        await asyncio.sleep(0.1)
    assert not questions, "a request waited for a storage that is known to be away"
    getattr(server, {"kill": "restart", "stall": "resume"}[how])()
    await answers_again(counting)
    away, back = messages(caplog)
    assert "does not answer" in away and "503" in away and "answers again" in back
    await counting.close()


@pytest.mark.skipif(not has_redis(), reason=NO_REDIS)
async def test_connections_that_are_cut_are_made_anew(tmp_path: Path) -> None:
    """By a firewall, say. What asks just then may be refused by name; the next is counted."""
    with mortal_redis("real", tmp_path) as server:
        _, _, place = server.url.partition("//")
        await cut_again_and_again(CuttingProxy(Address.parse(place.removesuffix("/0"))))


async def cut_again_and_again(proxy: CuttingProxy) -> None:
    options = GatewayOptions(
        requests_per_minute=10_000, rate_limit_storage=f"redis://{proxy.address}/0"
    )
    counting, num_counted, num_refused = Limits(options), 0, 0
    for number in range(20):
        asking = [asyncio.create_task(counting.count_request("a")) for _ in range(10)]
        if number % 2:
            await asyncio.sleep(0.0005 * number)
            await asyncio.to_thread(proxy.cut)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(each, LimitStorageError) for each in refused)
        num_counted += len(answers) - len(refused)
        num_refused += len(refused)
        await answers_again(counting)
    assert num_counted > num_refused
    await counting.close()
    await asyncio.to_thread(proxy.close)


async def test_tokens_of_requests_that_ended_meanwhile_are_counted(server: MortalRedis) -> None:
    first, second = (limits(server, tokens_per_minute=1000) for _ in range(2))
    stream = EndedStream()
    assert (await first.count_request("a")).tokens_left() == 1000
    first.tally("a").watch(stream, 100)
    server.kill()
    stream.end(ChargedTokens(30, 40))
    with pytest.raises(LimitStorageError):
        await first.count_request("a")
    assert first.tally("a").outstanding() == 70
    server.restart()
    await answers_again(first)
    await first.tally("a").flush()
    assert first.tally("a").outstanding() == 0
    assert (await second.count_request("a")).tokens_left() == 930, "seen by other servers, too"
    for each in (first, second):
        await each.close()


async def test_tokens_of_a_past_window_are_forgotten() -> None:
    now, storage_is_up, sums = [0.0], [False], list[int]()

    async def write(tokens: int) -> None:
        if not storage_is_up[0]:
            raise LimitStorageError("away")
        sums.append(tokens)

    tally = Tally(write, 60, lambda: now[0])
    for tokens in (100, 20, 3):
        stream = EndedStream()
        tally.watch(stream, 0)
        stream.end(ChargedTokens(tokens, 0))
        await asyncio.sleep(0)
        now[0] += 25
    storage_is_up[0] = True
    tally.write_ended()
    await tally.flush()
    assert (sums, tally.written, tally.outstanding()) == ([23], 23, 0)


@asynccontextmanager
async def running_here(gateway: Gateway) -> AsyncIterator[str]:
    """A server on this event loop, shut down in order, so that the gateway closes its storage."""
    settings = ServerOptions(port=0)
    listener = listen(settings)
    app = create_app(ScriptedEngine().loaded_model(), settings, gateway)
    server = uvicorn.Server(uvicorn_config(app, settings))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await serving


class Answer(NamedTuple):
    """``seconds`` are without the loop's delays meanwhile."""

    began: float
    seconds: float
    status: int


async def test_killed_and_back_in_mid_load(
    server: MortalRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Over HTTP: answers are 200 or 503, quick ones, and every 200 is counted."""
    caplog.set_level(logging.WARNING, LOGGER)
    options = GatewayOptions(requests_per_minute=100_000, rate_limit_storage=server.url)
    answers: list[Answer] = []
    running = True

    async def visit(client: httpx.AsyncClient) -> None:
        while running:
            began, num_delays = time.monotonic(), len(delays)
            response = await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
            if response.status_code == 503:
                assert response.json()["error"]["code"] == "rate_limit_storage"
                assert response.headers["retry-after"]
                await asyncio.sleep(0.01)
            seconds = time.monotonic() - began - sum(delays[num_delays:])
            answers.append(Answer(began, seconds, response.status_code))

    async with (
        running_here(Gateway(options)) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client,
        measured_delays() as delays,
    ):
        visitors = [asyncio.create_task(visit(client)) for _ in range(8)]
        await asyncio.sleep(0.7)
        server.kill()
        await asyncio.sleep(1.0)
        await asyncio.to_thread(server.restart)
        restarted = time.monotonic()
        while not any(answer.status == 200 and answer.began > restarted for answer in answers):
            assert time.monotonic() < restarted + BACK_WITHIN, "it does not look for its storage"
            await asyncio.sleep(0.05)
        back = time.monotonic()
        await asyncio.sleep(0.5)
        running = False
        await asyncio.gather(*visitors)
    statuses = Counter(answer.status for answer in answers)
    assert statuses.keys() == {200, 503}
    assert max(answer.seconds for answer in answers) < TIMEOUT + SLACK
    assert {answer.status for answer in answers if answer.began > back} == {200}
    counted = 100_000 - await remaining(server)
    # One more for the look at it. What was under way when it died may have been counted or not.
    assert statuses[200] + 1 <= counted <= statuses[200] + 1 + len(visitors)
    said = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(said) == 2, said


async def remaining(server: MortalRedis) -> int:
    """Of the requests of this minute, those of the anonymous tenant."""
    counting = limits(server, requests_per_minute=100_000)
    headers = dict((await counting.count_request("")).headers())
    await counting.close()
    return int(headers[b"x-ratelimit-remaining-requests"])
