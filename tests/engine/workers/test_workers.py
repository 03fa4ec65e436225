"""Protects: whatever becomes of a worker or its connection, its requests end as they would have.

Workers without a model, on threads, or as processes where they are killed.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from tests.engine.process.scripted_process import call, tokens_of, undisturbed, until
from tests.engine.workers.cutting_proxy import CuttingProxy
from tests.engine.workers.routed import are_there, routed
from tests.engine.workers.scripted_worker import MODEL, TOKEN, VERSION, worker_on_thread
from tests.engine.workers.worker_processes import free_port, worker_process
from tests.fakes import FakeExecutor, failed_with
from twostroke.core.errors import EngineDeadError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.network import address as address_module
from twostroke.core.network.address import Address
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import TakeRecords
from twostroke.engine.process import engine_process
from twostroke.engine.process.frames import encode_frame
from twostroke.engine.process.replicas import Replicas
from twostroke.engine.process.socket_link import SocketLink
from twostroke.engine.workers.connect import connect_worker
from twostroke.engine.workers.greeting import ModelFingerprint


def is_another(replicas: Replicas, link: SocketLink) -> bool:
    return replicas.engines[0]._process is not link and are_there(replicas)


async def some_tokens(streams: list[AsyncStream], number: int = 8) -> None:
    await until(lambda: min(stream.usage.output_tokens for stream in streams) >= number)


def loads(replicas: Replicas) -> list[int]:
    return [engine.num_unfinished for engine in replicas.engines]


REQUESTS = [
    call("greedy", max_tokens=60),
    call("sampled", max_tokens=60, temperature=1.0),
    call("three", n=3, max_tokens=60, temperature=1.0),
    call("other", first=8, max_tokens=60),
]


def longer(request: GenerationRequest) -> GenerationRequest:
    """One that does not end before a busy machine comes to what the test does meanwhile."""
    return replace(request, params=replace(request.params, max_tokens=120))


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_TEST_HUNG", "/nowhere")


async def test_a_worker_that_is_killed_loses_no_request() -> None:
    expected = [await undisturbed(request) for request in REQUESTS]
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        killed, kept = [stack.enter_context(worker_process(port)) for port in ports]
        replicas = stack.enter_context(routed([Address("127.0.0.1", port) for port in ports]))
        await until(partial(are_there, replicas))
        streams = [replicas.submit(request) for request in REQUESTS]
        assert loads(replicas) == [2, 2]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await some_tokens(streams)
        killed.send_signal(signal.SIGKILL)
        async with asyncio.timeout(20):
            assert [await task for task in reading] == expected
        assert replicas.unhealthy_reason() is None
        await until(lambda: "refused" in (replicas.engines[0].unhealthy_reason() or ""))
        with worker_process(ports[0]):  # it comes back
            await until(partial(are_there, replicas))
        kept.send_signal(signal.SIGTERM)
        assert kept.wait(10) == 0


async def test_a_worker_that_is_stopped_is_left_after_the_stall_timeout() -> None:
    expected = [await undisturbed(request) for request in REQUESTS]
    ports = [free_port(), free_port()]
    with ExitStack() as stack:
        stopped, _ = [stack.enter_context(worker_process(port)) for port in ports]
        addresses = [Address("127.0.0.1", port) for port in ports]
        replicas = stack.enter_context(routed(addresses, stall_seconds=0.5))
        await until(partial(are_there, replicas))
        streams = [replicas.submit(request) for request in REQUESTS]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await some_tokens(streams)
        stopped.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(20):
            assert [await task for task in reading] == expected
        assert "has not answered" in (replicas.engines[0].unhealthy_reason() or "")
        stopped.send_signal(signal.SIGCONT)
        await until(partial(are_there, replicas))


async def test_a_connection_that_is_cut_again_and_again_changes_no_token() -> None:
    expected = [await undisturbed(request) for request in REQUESTS]
    with worker_on_thread() as worker:
        proxy = CuttingProxy(worker.address)
        with routed([proxy.address]) as replicas:
            streams = [replicas.submit(request) for request in REQUESTS]
            reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
            for number in (5, 20, 40):
                await some_tokens(streams, number)
                link = replicas.engines[0]._process
                proxy.cut()
                await until(partial(is_another, replicas, link))
            async with asyncio.timeout(20):
                assert [await task for task in reading] == expected
            steps = [event.step for event in replicas.events()]
            assert steps == list(range(len(steps))), "numbers go on"
        proxy.close()


async def test_when_all_workers_are_gone_requests_wait_for_the_first_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "OWN_SECONDS", 0.3)
    expected = [await undisturbed(request) for request in REQUESTS]
    with worker_on_thread() as one, worker_on_thread() as two:
        proxies = [CuttingProxy(worker.address) for worker in (one, two)]
        with routed([proxy.address for proxy in proxies]) as replicas:
            await until(partial(are_there, replicas))
            streams = [replicas.submit(request) for request in REQUESTS]
            reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
            await some_tokens(streams)
            for proxy in proxies:
                proxy.is_open = False
                proxy.cut()
            await until(lambda: replicas.status.error is not None)
            reason = replicas.unhealthy_reason() or ""
            assert all(str(proxy.address) in reason for proxy in proxies)
            with pytest.raises(EngineDeadError):
                replicas.submit(call("new"))
            proxies[1].is_open = True  # the first stays away
            async with asyncio.timeout(20):
                assert [await task for task in reading] == expected
        for proxy in proxies:
            proxy.close()


async def test_a_worker_that_comes_late_takes_over_what_its_router_never_asked_it() -> None:
    """Nobody has asked after its health, so nothing but a request of another ties it to a loop."""
    expected = await undisturbed(REQUESTS[1])
    with worker_on_thread() as one, worker_on_thread() as two:
        first, late = (CuttingProxy(worker.address) for worker in (one, two))
        late.is_open = False
        with routed([first.address, late.address]) as replicas:
            stream = replicas.submit(REQUESTS[1])
            reading = asyncio.create_task(tokens_of(stream))
            await some_tokens([stream])
            first.is_open = False
            first.cut()
            await until(lambda: replicas.status.error is not None)
            late.is_open = True
            async with asyncio.timeout(20):
                assert await reading == expected
            assert all(engine._watcher.is_alive() for engine in replicas.engines)
        first.close()
        late.close()


@pytest.mark.parametrize("first", ["abort", "cut"])
async def test_what_is_aborted_while_no_worker_is_there_ends_at_once(first: str) -> None:
    with worker_on_thread() as worker:
        proxy = CuttingProxy(worker.address)
        with routed([proxy.address]) as replicas:
            stream = replicas.submit(call("a", max_tokens=100))
            ended = asyncio.Event()
            stream.when_ended(lambda usage: ended.set())
            await some_tokens([stream])
            proxy.is_open = False
            if first == "abort":
                stream.abort()
            proxy.cut()
            await until(lambda: replicas.status.error is not None)
            stream.abort()
            async with asyncio.timeout(2):
                await ended.wait()
            assert loads(replicas) == [0]
        proxy.close()


async def test_what_waits_too_long_for_a_worker_ends_with_a_named_error() -> None:
    with worker_on_thread() as worker:
        proxy = CuttingProxy(worker.address)
        with routed([proxy.address], stall_seconds=0.3) as replicas:
            stream = replicas.submit(call("a", max_tokens=100))
            await some_tokens([stream])
            proxy.is_open = False
            proxy.cut()
            async with asyncio.timeout(10):
                outputs = [output async for output in stream]
            assert failed_with(outputs[-1].error, EngineDeadError)
            assert str(proxy.address) in str(outputs[-1].error)
        proxy.close()


async def test_a_worker_drops_the_requests_of_a_router_that_is_gone() -> None:
    with worker_on_thread() as worker:
        with routed([worker.address]) as replicas:
            stream = replicas.submit(call("a", max_tokens=100))
            await some_tokens([stream])
        await until(lambda: not worker._engine.scheduler.requests)
        with routed([worker.address]) as replicas:  # which finds what the first has cached
            again = call("a", max_tokens=100)
            assert await tokens_of(replicas.submit(again)) == await undisturbed(again)
            assert replicas.events()[0].step == 0, "not the first one's steps"


async def test_a_worker_that_drains_takes_nothing_new_and_finishes() -> None:
    with (
        worker_on_thread() as leaving,
        worker_on_thread() as staying,
        routed([leaving.address, staying.address]) as replicas,
    ):
        await until(partial(are_there, replicas))
        requests = [longer(request) for request in REQUESTS]
        streams = [replicas.submit(request) for request in requests[:2]]
        reading = [asyncio.create_task(tokens_of(stream)) for stream in streams]
        await some_tokens(streams)
        leaving.drain(30)
        first = replicas.engines[0]
        await until(lambda: first.status.draining)
        assert replicas.unhealthy_reason() is None
        assert "shutting down" in (first.unhealthy_reason() or "")
        streams += [replicas.submit(request) for request in requests[2:]]
        reading += [asyncio.create_task(tokens_of(stream)) for stream in streams[2:]]
        assert first.num_unfinished <= 1
        assert [await task for task in reading] == [await undisturbed(r) for r in requests]
        assert streams[0].num_engines_lost == 0, "it was finished where it ran"
        await until(lambda: first.status.error is not None)
        refused = pytest.raises(EngineDeadError, match=str(leaving.address))
        with refused:
            first.submit(call("late"))


async def test_what_a_draining_worker_does_not_finish_in_time_goes_on_elsewhere() -> None:
    with (
        worker_on_thread() as leaving,
        worker_on_thread() as staying,
        routed([leaving.address, staying.address]) as replicas,
    ):
        await until(partial(are_there, replicas))
        request = longer(REQUESTS[1])
        stream = replicas.submit(request)
        reading = asyncio.create_task(tokens_of(stream))
        await some_tokens([stream])
        leaving.drain(0.05)
        assert await reading == await undisturbed(request)
        assert loads(replicas) == [0, 0]


async def test_a_worker_that_comes_back_with_another_model_is_refused_by_name() -> None:
    with worker_on_thread() as worker:
        proxy = CuttingProxy(worker.address)
        with routed([proxy.address]) as replicas:
            await until(partial(are_there, replicas))
            other = ModelFingerprint("other", MODEL.tokenizer, "0123")
            with worker_on_thread(model=other) as stranger:
                proxy._to = stranger.address
                proxy.cut()
                await until(lambda: "another model" in (replicas.unhealthy_reason() or ""))
                assert "other (0123), not scripted (weights)" in str(replicas.unhealthy_reason())
                proxy._to = worker.address
                await until(partial(are_there, replicas))
        proxy.close()


async def test_a_router_that_reads_slowly_is_left_and_its_requests_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its socket is full: the engine waits for it only so long."""
    monkeypatch.setattr(address_module, "GONE_SECONDS", 1)
    with worker_on_thread() as worker:
        link, _ = connect_worker(worker.address, TOKEN, VERSION)
        link._socket.setblocking(True)
        request = LLMEngine(FakeExecutor()).prepare(call("a", max_tokens=100))
        for each in (request, *(TakeRecords(number) for number in range(1000))):
            link._socket.sendall(encode_frame(each))
        await until(lambda: worker._front_end is not None)
        await until(lambda: worker._front_end is None)
        assert not worker._engine.scheduler.requests
        link.close()
        with routed([worker.address]) as replicas:
            assert await tokens_of(replicas.submit(call("a"))) == await undisturbed(call("a"))
