"""Rate limits: counted in memory and in a (fake) Redis alike, and released in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.gateway.redis_servers import fake_redis
from twostroke.core.errors import LimitStorageError, RequestRateError, TokenRateError
from twostroke.core.output import RequestOutput
from twostroke.engine.clients.base import ChargedTokens
from twostroke.gateway.limits import Limits, format_duration
from twostroke.gateway.options import GatewayOptions

MakeLimits = Callable[..., Limits]


class Stream:
    """Implements ``OutputStream``: uses as many tokens as ``end`` is given."""

    def __init__(self) -> None:
        self.usage = ChargedTokens(0, 0)
        self._on_end: Callable[[ChargedTokens], None] = lambda usage: None

    def listen(self, on_output: Callable[[RequestOutput], None]) -> None:
        raise AssertionError("the tally does not listen")

    def __aiter__(self) -> AsyncIterator[RequestOutput]:
        raise AssertionError("the tally reads no outputs")

    def abort(self) -> None:
        """Nothing runs."""

    def when_ended(self, on_end: Callable[[ChargedTokens], None]) -> None:
        self._on_end = on_end

    def end(self, prompt: int, output: int) -> None:
        self.usage = ChargedTokens(prompt, output)
        self._on_end(self.usage)


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis that speaks the real protocol on loopback, without a Redis."""
    with fake_redis() as server:
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"


@pytest.fixture(params=["memory", "redis"])
def storage(request: pytest.FixtureRequest) -> str:
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("redis_url"))


@pytest.fixture
async def limits() -> AsyncIterator[MakeLimits]:
    """Makes limits, and closes them at the end."""
    made = []

    def make(storage: str, *, seconds: int = 60, **options: Any) -> Limits:
        made.append(
            Limits(GatewayOptions(rate_limit_storage=storage, **options), window_seconds=seconds)
        )
        return made[-1]

    yield make
    for each in made:
        await each.close()


def values(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in headers}


async def test_requests_are_counted_per_tenant(limits: MakeLimits, storage: str) -> None:
    counting = limits(storage, requests_per_minute=3)
    left = []
    for _ in range(3):
        snapshot = await counting.count_request("counted")
        snapshot.check()
        left.append(values(snapshot.headers())["remaining-requests"])
    assert left == ["2", "1", "0"]
    with pytest.raises(RequestRateError, match="3 requests per minute") as caught:
        (await counting.count_request("counted")).check()
    assert 1 <= caught.value.retry_after <= 60
    (await counting.count_request("other")).check()


async def test_a_window_ends(limits: MakeLimits) -> None:
    counting = limits("memory://", seconds=1, requests_per_minute=1)
    (await counting.count_request("a")).check()
    snapshot = await counting.count_request("a")
    with pytest.raises(RequestRateError) as caught:
        snapshot.check()
    assert caught.value.retry_after == 1
    await asyncio.sleep(1.1)
    (await counting.count_request("a")).check()


async def test_tokens_count_while_they_run_and_after(limits: MakeLimits, storage: str) -> None:
    counting = limits(storage, tokens_per_minute=100)
    snapshot = await counting.count_request("runs")
    assert snapshot.tokens_left() == 100
    stream = Stream()
    snapshot.check_tokens(30)
    counting.tally("runs").watch(stream, 55)
    assert snapshot.tokens_left() == 45, "what it may use is reserved from the start"
    stream.usage = ChargedTokens(30, 25)
    assert snapshot.tokens_left() == 45
    other = await counting.count_request("runs")
    with pytest.raises(TokenRateError, match="55 used or reserved, 46 more requested"):
        other.check_tokens(46)
    stream.end(30, 40)
    assert other.tokens_left() == 30, "between the end and the storage nothing is lost"
    await counting.tally("runs").flush()
    assert (other.tokens_left(), (await counting.count_request("runs")).tokens_left()) == (30, 30)


async def test_a_prompt_that_never_ran_is_given_back(limits: MakeLimits, storage: str) -> None:
    counting = limits(storage, tokens_per_minute=100)
    snapshot = await counting.count_request("aborted")
    stream = Stream()
    counting.tally("aborted").watch(stream, 80)
    assert snapshot.tokens_left() == 20
    stream.end(0, 0)
    assert snapshot.tokens_left() == 100


async def test_what_goes_beyond_the_limit_is_counted_too(limits: MakeLimits, storage: str) -> None:
    """A server counts its own requests alone; an overdrawn key waits for the next minute."""
    counting = limits(storage, tokens_per_minute=100)
    stream = Stream()
    counting.tally("overdrawn").watch(stream, 10)
    stream.end(10, 500)
    await counting.tally("overdrawn").flush()
    snapshot = await counting.count_request("overdrawn")
    assert values(snapshot.headers())["remaining-tokens"] == "0"
    with pytest.raises(TokenRateError):
        snapshot.check()


async def test_a_prompt_above_the_limit_says_that_waiting_will_not_help(limits: MakeLimits) -> None:
    counting = limits("memory://", tokens_per_minute=100)
    with pytest.raises(TokenRateError) as caught:
        (await counting.count_request("a")).check_tokens(101)
    assert caught.value.hint == "ask for at most 100 tokens, prompts and max_tokens together"


async def test_servers_that_share_a_redis_count_together(
    limits: MakeLimits, redis_url: str
) -> None:
    first, second = (
        limits(redis_url, requests_per_minute=2, tokens_per_minute=100) for _ in range(2)
    )
    stream = Stream()
    (await first.count_request("shared")).check()
    first.tally("shared").watch(stream, 60)
    stream.end(60, 20)
    await first.tally("shared").flush()
    snapshot = await second.count_request("shared")
    snapshot.check()
    assert values(snapshot.headers())["remaining-tokens"] == "20"
    with pytest.raises(RequestRateError):
        (await first.count_request("shared")).check()


async def test_no_answer_from_the_storage_refuses_in_time(limits: MakeLimits) -> None:
    """A limit that cannot be counted is not kept silently."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    counting = limits(f"redis://127.0.0.1:{port}", requests_per_minute=1)
    started = time.monotonic()
    with pytest.raises(LimitStorageError):
        await counting.count_request("a")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        counting = limits(f"redis://127.0.0.1:{silent.getsockname()[1]}", requests_per_minute=1)
        with pytest.raises(LimitStorageError):
            await counting.count_request("a")
    assert time.monotonic() - started < 30


async def test_tokens_that_cannot_be_written_do_not_run_for_ever(
    limits: MakeLimits, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    counting = limits(f"redis://127.0.0.1:{port}", tokens_per_minute=10)
    stream = Stream()
    counting.tally("a").watch(stream, 5)
    stream.end(5, 5)
    await counting.tally("a").flush()
    assert "10 tokens were not counted" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0201, "21ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (11.2, "12s"),
        (59.5, "1m0s"),
        (61, "1m1s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
