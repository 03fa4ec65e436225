"""Protects: routers that share no state neither take workers from each other nor lose requests."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from tests.engine.process.scripted_process import call, tokens_of, undisturbed, until
from tests.engine.workers.routed import are_there, routed
from tests.engine.workers.scripted_worker import worker_on_thread
from tests.engine.workers.worker_processes import free_port, worker_process
from twostroke.core.network.address import Address
from twostroke.engine.process.replicas import Replicas

REQUESTS = [call(f"{number}", first=number, max_tokens=60) for number in range(1, 7)]


@pytest.fixture(autouse=True)
def nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_TEST_HUNG", "/nowhere")


@contextmanager
def workers(number: int) -> Iterator[list[Address]]:
    with ExitStack() as stack:
        yield [stack.enter_context(worker_on_thread()).address for _ in range(number)]


async def answers(replicas: Replicas) -> list[dict[int, list[int]]]:
    streams = [replicas.submit(request) for request in REQUESTS]
    return [await tokens_of(stream) for stream in streams]


async def test_workers_that_are_divided_serve_two_routers() -> None:
    """Also with the same ids of requests on both sides."""
    expected = [await undisturbed(request) for request in REQUESTS]
    with workers(4) as addresses, routed(addresses[:2]) as one, routed(addresses[2:]) as other:
        await until(lambda: are_there(one) and are_there(other))
        assert [*await asyncio.gather(answers(one), answers(other))] == [expected, expected]
        assert {engine.num_unfinished for engine in [*one.engines, *other.engines]} == {0}


async def test_of_two_routers_with_one_list_the_second_waits_until_the_first_is_gone() -> None:
    expected = [await undisturbed(request) for request in REQUESTS]
    ready, over = threading.Event(), threading.Event()
    second: list[Replicas] = []

    def stand_by(addresses: list[Address]) -> None:
        with routed(addresses) as replicas:
            second.append(replicas)
            ready.set()
            over.wait(60)

    with workers(2) as addresses:
        with routed(addresses) as first:
            await until(partial(are_there, first))
            waiting = threading.Thread(target=stand_by, args=(addresses,))
            waiting.start()
            assert await answers(first) == expected
            await asyncio.sleep(0.7)  # longer than between two of its tries
            assert not ready.is_set(), "it was let in"
            assert are_there(first)
        await asyncio.to_thread(ready.wait, 30)
        await until(lambda: are_there(second[0]))
        assert await answers(second[0]) == expected
        over.set()
        await asyncio.to_thread(waiting.join, 30)
        assert not waiting.is_alive()


async def test_two_routers_with_one_list_divide_workers_that_come_back_without_a_quarrel() -> None:
    """Whichever is first at a worker keeps it; nothing that runs is taken from a router."""
    expected = [await undisturbed(request) for request in REQUESTS]
    with workers(2) as (left, right), routed([left, right]) as one:
        await until(partial(are_there, one))
        with ExitStack() as stack:
            extra = stack.enter_context(worker_on_thread()).address
            other = stack.enter_context(routed([extra, left]))
            await until(lambda: other.engines[0].takes_requests)
            assert [*await asyncio.gather(answers(one), answers(other))] == [expected, expected]
            assert are_there(one) and other.unhealthy_reason() is None
            assert "another front end" in (other.engines[1].unhealthy_reason() or "")


async def test_a_worker_that_stands_still_for_a_while_is_not_declared_dead() -> None:
    """Health is a counter of progress and a limit, not how fast a probe is answered."""
    expected = [await undisturbed(request) for request in REQUESTS]
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        stopped, _ = [stack.enter_context(worker_process(port)) for port in ports]
        addresses = [Address("127.0.0.1", port) for port in ports]
        replicas = stack.enter_context(routed(addresses, stall_seconds=20.0))
        await until(partial(are_there, replicas))
        streams = [replicas.submit(request) for request in REQUESTS]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await until(lambda: min(stream.usage.output_tokens for stream in streams) > 5)
        stopped.send_signal(signal.SIGSTOP)
        try:
            for _ in range(60):
                await asyncio.sleep(0.05)
                assert [engine.unhealthy_reason() for engine in replicas.engines] == [None, None]
                assert replicas.engines[0].num_unfinished == 3, "they went elsewhere"
            assert replicas.engines[1].num_unfinished == 0, "the other has gone on"
        finally:
            stopped.send_signal(signal.SIGCONT)
        async with asyncio.timeout(20):
            assert [await task for task in reading] == expected
        assert all(stream.num_engines_lost == 0 for stream in streams)
