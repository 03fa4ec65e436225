"""Protects: of several engines of a model each may end, and its requests go on in the others."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.calls import num_cached
from tests.engine.process.scripted_engine import ENDS
from tests.engine.process.scripted_process import (
    alive,
    call,
    pid_of,
    started,
    tokens_of,
    undisturbed,
    until,
)
from tests.fakes import failed_with
from twostroke.core.errors import EngineDeadError, InvalidRequestError
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.cache_orders import ClearCache
from twostroke.engine.process import engine_process, engine_source, process_link
from twostroke.engine.process.candidates import Candidates
from twostroke.engine.process.occupancy import fullness
from twostroke.engine.process.replicas import Replicas
from twostroke.observability.tracing.attempts import Outcome
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.observability.tracing.trace import RequestTrace
from twostroke.routing.make_router import make_router
from twostroke.routing.routers import RouterName


@contextmanager
def running(number: int = 2, router: RouterName = "least-loaded") -> Iterator[Replicas]:
    replicas = Replicas([started(rank) for rank in range(number)], make_router(router))
    try:
        yield replicas
    finally:
        replicas.close()
    assert not any(alive(pid_of(engine)) for engine in replicas.engines)


async def kill_first(replicas: Replicas) -> None:
    """Kill the process of the first engine, and wait until another runs in its place."""
    before = pid_of(replicas.engines[0])
    os.kill(before, signal.SIGKILL)
    await until(lambda: pid_of(replicas.engines[0]) != before)


def loads(replicas: Replicas) -> list[int]:
    return [engine.num_unfinished for engine in replicas.engines]


async def test_requests_go_on_elsewhere_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the engine that ended is there again."""
    monkeypatch.setattr(process_link, "PAUSES", (30.0,))
    requests = [call(f"{number}", first=number, max_tokens=60) for number in range(1, 7)]
    expected = [await undisturbed(request) for request in requests]
    with running() as replicas:
        streams = [replicas.submit(request) for request in requests]
        assert loads(replicas) == [3, 3]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await until(lambda: min(stream.usage.output_tokens for stream in streams) > 10)
        os.kill(pid_of(replicas.engines[0]), signal.SIGKILL)
        await until(lambda: loads(replicas)[0] == 0)
        assert loads(replicas)[1] == 6
        assert replicas.unhealthy_reason() is None and replicas.status.error is None
        async with asyncio.timeout(20):
            assert [await task for task in reading] == expected
        assert replicas.engines[0].status.error is not None
        assert await tokens_of(replicas.submit(requests[0])) == expected[0]


async def test_when_all_have_ended_requests_wait_for_the_first_that_is_back() -> None:
    requests = [call(f"{number}", first=number, max_tokens=60) for number in range(1, 5)]
    expected = [await undisturbed(request) for request in requests]
    with running() as replicas:
        streams = [replicas.submit(request) for request in requests]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await until(lambda: min(stream.usage.output_tokens for stream in streams) > 5)
        for engine in replicas.engines:
            os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: replicas.status.error is not None)
        assert "SIGKILL" in (replicas.unhealthy_reason() or "")
        with pytest.raises(EngineDeadError):
            replicas.submit(call("new"))
        async with asyncio.timeout(20):
            assert [await task for task in reading] == expected


async def test_an_engine_that_never_had_a_request_has_not_failed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its trace tells of the engine before which it waited, and of the one that answered."""
    monkeypatch.setattr(process_link, "PAUSES", (30.0,))
    followed: dict[str, RequestTrace] = {}
    trace, traces = RequestTrace(None, followed, lambda trace: None), EngineTraces(followed)
    trace.follow("held")
    replicas = Replicas([started()], make_router("least-loaded"), traces=traces)
    try:
        (gone,) = replicas.engines
        gone.holds_requests = True
        os.kill(pid_of(gone), signal.SIGKILL)
        await until(lambda: replicas.status.error is not None)
        stream = replicas.submit(call("held"))
        replicas.add(started(1))
        assert await tokens_of(stream) == await undisturbed(call("held"))
        waited, answered = trace.attempts
        assert (waited.engine, waited.outcome) == ("0", Outcome.HANDED_ON)
        assert (answered.engine, answered.outcome) == ("1", Outcome.ENDED)
    finally:
        replicas.close()


async def test_a_request_that_ends_engines_ends_no_other_request() -> None:
    others = [call(f"other-{number}", first=number) for number in range(1, 7)]
    expected = [await undisturbed(request) for request in others]
    with running() as replicas:
        streams = [replicas.submit(request) for request in others]
        bad = replicas.submit(call("bad", first=ENDS))
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        async with asyncio.timeout(60):
            outputs = [output async for output in bad]
            assert [await task for task in reading] == expected
        assert failed_with(outputs[-1].error, EngineDeadError)


async def test_prompts_go_where_their_beginning_is() -> None:
    prefix = [7] * 80
    with running(router="prefix-affinity") as replicas:
        places = []
        for number in range(4):
            request = GenerationRequest(
                request_id=f"{number}",
                prompt_token_ids=[*(prefix if number % 2 else [number + 1] * 80), 3],
                params=call("a", max_tokens=2).params,
            )
            stream = replicas.submit(request)
            places.append(loads(replicas).index(1))
            await tokens_of(stream)
            await until(lambda: sum(loads(replicas)) == 0)
        assert places[1] == places[3], "the same prefix"


async def test_prompts_go_where_they_are_cached_until_that_ends() -> None:
    """As engines tell of their caches; one that has started again holds nothing."""
    shared = [7] * 80
    with running(router="kv-aware") as replicas:

        async def place(request_id: str, prompt: list[int]) -> int:
            stream = replicas.submit(
                replace(call(request_id, max_tokens=2), prompt_token_ids=prompt)
            )
            index = loads(replicas).index(1)
            await tokens_of(stream)
            await until(lambda: sum(loads(replicas)) == 0)
            return index

        def held(index: int) -> int:
            return num_cached(replicas.engines[index], replace(call(""), prompt_token_ids=shared))

        home = await place("a", shared)
        await until(lambda: held(home) > 64)
        assert not held(1 - home)
        assert await place("b", [9] * 40) == 0 and await place("c", shared) == home
        before = pid_of(replicas.engines[home])
        os.kill(before, signal.SIGKILL)
        await until(lambda: pid_of(replicas.engines[home]) != before)
        assert held(home) == 0
        bad = replace(call("bad"), prompt_token_ids=[-1] * 80)
        with pytest.raises(InvalidRequestError):
            replicas.submit(bad)


@pytest.mark.parametrize("label", ["prompt_cache_key", "safety_identifier", "user", "user_id"])
async def test_what_names_a_session_goes_to_one_engine(label: str) -> None:
    """In OpenAI's words, or in Anthropic's."""
    with running(router="session") as replicas:
        places: dict[str, set[int]] = {}
        for number in range(24):
            name = f"user {number % 8}"
            request = replace(call(f"{number}", max_tokens=1), labels={label: name})
            stream = replicas.submit(request)
            places.setdefault(name, set()).add(loads(replicas).index(1))
            await tokens_of(stream)
            await until(lambda: sum(loads(replicas)) == 0)
        assert all(len(each) == 1 for each in places.values())
        assert len(set.union(*places.values())) == 2


async def test_questions_are_answered_by_all() -> None:
    with running() as replicas:
        streams = [replicas.submit(call(name)) for name in ("a", "b")]
        with pytest.raises(InvalidRequestError, match="in use"):
            replicas.submit(call("a"))
        for stream in streams:
            await tokens_of(stream)
        lines = (await replicas.records()).metrics.splitlines()
        counted = [line for line in lines if line.startswith(b"vllm:generation_tokens_total{")]
        assert [line.split()[-1] for line in counted] == [b"40.0", b"40.0"]
        assert b'engine="0"' in counted[0] and b'engine="1"' in counted[1]
        each = [engine.status.stats.cached_blocks for engine in replicas.engines]
        assert replicas.status.stats.cached_blocks == sum(each) and min(each) > 0
        report = await replicas.manage_cache(ClearCache())
        assert report.cleared_blocks == sum(each)
        with pytest.raises(InvalidRequestError, match="several engines"):
            replicas.kv_events()
        assert replicas.events()
        assert (await replicas.snapshot()).ended


async def test_long_prompts_go_where_there_is_most_room() -> None:
    """Counted by memory from the moment they are sent, before the engine has told of them."""
    with running(router="kv-occupancy") as replicas:
        long, short = call("long", max_tokens=40), [call(f"{n}") for n in range(4)]
        streams = [replicas.submit(replace(long, prompt_token_ids=[1] * 80))]
        streams += [replicas.submit(request) for request in short]
        assert loads(replicas) == [1, 4]
        await until(lambda: min(stream.usage.output_tokens for stream in streams) > 10)
        first, second = (fullness(engine) for engine in replicas.engines)
        blocks = [engine.status.stats for engine in replicas.engines]
        held = [each.total_blocks - each.free_blocks for each in blocks]
        assert held[0] > held[1] > 0
        assert first == held[0] / blocks[0].total_blocks and second > 0
        for stream in streams:
            await tokens_of(stream)


async def test_an_engine_that_fails_again_and_again_gets_nothing_for_a_while() -> None:
    now = 1000.0
    with running() as replicas:
        candidates = replicas.candidates = Candidates(0.0, lambda: now)
        for engine in replicas.engines:
            engine.when_changed(True)
        for number in range(3):
            await kill_first(replicas)
            assert candidates.is_left_out(0) is (number == 2)
        kept = [replicas.submit(call(f"kept-{number}")) for number in range(3)]
        assert loads(replicas) == [0, 3]
        now += 10.0
        trial = [replicas.submit(call(f"trial-{number}")) for number in range(3)]
        assert loads(replicas) == [1, 5], "one request is its trial"
        for stream in [*kept, *trial]:
            await tokens_of(stream)
        assert not candidates.is_left_out(0)
        again = [replicas.submit(call(f"again-{number}")) for number in range(4)]
        assert loads(replicas) == [2, 2]
        for stream in again:
            await tokens_of(stream)


async def test_where_all_fail_again_and_again_each_is_tried() -> None:
    with running(1) as replicas:
        for _ in range(3):
            replicas.engines[0].when_changed(False)
        assert replicas.candidates.is_left_out(0)
        assert await tokens_of(replicas.submit(call("a"))) == await undisturbed(call("a"))


async def test_an_engine_that_is_back_starts_slowly() -> None:
    now = 1000.0
    with running() as replicas:
        replicas.candidates = Candidates(10.0, lambda: now)
        replicas.engines[0].when_changed(True)
        streams = [replicas.submit(call(f"{number}")) for number in range(9)]
        assert loads(replicas) == [0, 9]
        streams.append(replicas.submit(call("tenth")))
        assert loads(replicas) == [1, 9], "a tenth of what the other has"
        now += 10.0
        streams += [replicas.submit(call(f"late-{number}")) for number in range(8)]
        assert loads(replicas) == [9, 9]
        for stream in streams:
            await tokens_of(stream)


async def test_what_was_aborted_goes_nowhere() -> None:
    with running() as replicas:
        stream, other = replicas.submit(call("a")), replicas.submit(call("b"))
        await until(lambda: stream.usage.output_tokens > 3)
        ended = asyncio.Event()
        stream.when_ended(lambda usage: ended.set())
        os.kill(pid_of(replicas.engines[0]), signal.SIGKILL)
        stream.abort()
        async with asyncio.timeout(20):
            await ended.wait()
        assert await tokens_of(other) == await undisturbed(call("b"))


async def test_an_engine_that_is_started_while_its_client_closes_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again: list[Any] = []
    ready, original = threading.Event(), engine_source.start_again

    def start_again(*arguments: Any) -> Any:
        started_again, number = original(*arguments)
        again.append(started_again)
        ready.set()
        return started_again, number

    monkeypatch.setattr(engine_process, "start_again", start_again)
    with running(1) as replicas:
        (engine,) = replicas.engines
        assert engine.unhealthy_reason() is None
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: engine.status.error is not None)
        assert ready.wait(20)  # the loop does not come to what the watcher wants of it
    await asyncio.to_thread(engine._watcher.join, 20)
    assert not engine._watcher.is_alive()
    (late,) = again
    assert late.link.wait(0) and late.link._socket.fileno() == -1
