"""Streams over the engine's thread: order, aborts, drain, and never a silent hang."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes import FakeExecutor, failed_with, next_token
from twostroke.core.config import EngineConfig, SchedulerConfig
from twostroke.core.errors import (
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    QueueFullError,
    ShuttingDownError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine


class SlowExecutor(FakeExecutor):
    """Takes a millisecond a step, as a real pass would take its time."""

    delay = 0.001

    def execute(self, plan: StepPlan) -> StepResult:
        time.sleep(self.delay)
        return super().execute(plan)


class Panic(BaseException):
    """As pyo3's PanicException, which a bug in the tokenizers library raises."""


def call(request_id: str, **params: Any) -> GenerationRequest:
    fields = {"max_tokens": 5, "ignore_eos": True, "detokenize": False, "seed": 0, **params}
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=[1, 2, 3], params=SamplingParams(**fields)
    )


@pytest.fixture
def llm_engine() -> LLMEngine:
    """What ``engine`` runs on its thread."""
    return LLMEngine(SlowExecutor())


@pytest_asyncio.fixture
async def engine(llm_engine: LLMEngine) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(llm_engine, stall_seconds=0.2)
    yield engine
    engine.close()


async def until(condition: Any, timeout: float = 5.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


async def test_many_streams_at_once_each_get_their_own_tokens(engine: AsyncEngine) -> None:
    async def collect(request_id: str, seed: int) -> list[int]:
        return [
            t
            async for output in engine.submit(call(request_id, seed=seed))
            for t in output.token_ids
        ]

    results = await asyncio.wait_for(asyncio.gather(*(collect(str(i), i) for i in range(20))), 10)
    for seed, tokens in enumerate(results):
        expected = [1, 2, 3]
        for _ in range(5):
            expected.append(next_token(expected, seed))
        assert tokens == expected[3:]


async def test_leaving_a_stream_frees_its_blocks(
    engine: AsyncEngine, llm_engine: LLMEngine
) -> None:
    """As when a client disconnects: its answer is read no more, so it is computed no more."""
    stream = engine.submit(call("a", max_tokens=100))
    async for _ in stream:
        break
    stream.abort()
    await until(lambda: not llm_engine.has_work())
    assert llm_engine.scheduler.kv.pool.num_free == engine.info.num_blocks


async def test_aborting_while_reading_ends_the_stream(engine: AsyncEngine) -> None:
    stream = engine.submit(call("a", max_tokens=100))
    count = 0
    async with asyncio.timeout(5):
        async for _ in stream:
            count += 1
            stream.abort()
    assert 1 <= count < 100


async def test_a_late_listener_gets_all_and_in_order(engine: AsyncEngine) -> None:
    """None of it, amid it, or all of it may have come."""
    expected = [output.token_ids async for output in engine.submit(call("read", max_tokens=50))]
    for come in (0, 5, 50):
        received: list[RequestOutput] = []
        stream = engine.submit(call("received", max_tokens=50))
        while stream.usage.output_tokens < come:
            await asyncio.sleep(0.001)
        stream.listen(received.append)
        assert sum(len(output.token_ids) for output in received) == stream.usage.output_tokens, (
            "handed over at once"
        )
        await until(lambda: not engine._streams)
        assert [output.token_ids for output in received] == expected
        assert received[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("failure", [ValueError, Panic])
@pytest.mark.parametrize("early", [False, True])
async def test_a_listener_that_fails_hurts_no_other_stream(
    engine: AsyncEngine, failure: type[BaseException], early: bool
) -> None:
    """All of a step's outputs come in one call, and a listener that fails has others behind it."""
    calls = 0

    def fail(output: RequestOutput) -> None:
        nonlocal calls
        calls += 1
        raise failure("a bug")

    others: dict[str, list[RequestOutput]] = {"before": [], "behind": []}
    engine.submit(call("before", max_tokens=30)).listen(others["before"].append)
    bad = engine.submit(call("bad", max_tokens=100))
    engine.submit(call("behind", max_tokens=30)).listen(others["behind"].append)
    if early:
        await until(lambda: bad.usage.output_tokens > 1)
    bad.listen(fail)
    await until(lambda: not engine._streams)
    assert calls == 1
    assert bad.usage.output_tokens < 100, "it has no listener, so it is aborted"
    for received in others.values():
        assert sum(len(output.token_ids) for output in received) == 30
        assert received[-1].finish_reason is FinishReason.LENGTH


async def test_an_aborted_stream_gives_no_more_outputs(engine: AsyncEngine) -> None:
    received: list[RequestOutput] = []

    def hear(output: RequestOutput) -> None:
        received.append(output)
        stream.abort()

    stream = engine.submit(call("a", max_tokens=100))
    await until(lambda: stream.usage.output_tokens > 1)
    stream.listen(hear)
    await until(lambda: not engine._streams)
    assert len(received) == 1


async def test_closing_ends_open_streams_and_refuses_new_ones() -> None:
    engine = AsyncEngine(LLMEngine(SlowExecutor()))
    stream = engine.submit(call("a", max_tokens=100))
    await asyncio.to_thread(engine.close)
    outputs = await asyncio.wait_for(_all(stream), 5)
    assert outputs[-1].finish_reason is FinishReason.ABORT
    with pytest.raises(ShuttingDownError, match="closed"):
        engine.submit(call("b"))


async def test_bad_request_raises_at_once_and_the_id_stays_free(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequestError):
        engine.submit(call("a", max_tokens=1000))
    outputs = [output async for output in engine.submit(call("a"))]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    stream = engine.submit(call("b", max_tokens=50))
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.submit(call("b"))
    stream.abort()


async def test_draining_and_closing_at_once_leaves_no_stream_waiting() -> None:
    """What was aborted in the last moment gets its last output before the thread ends."""
    engine = AsyncEngine(LLMEngine(SlowExecutor()))
    stream = engine.submit(call("a", max_tokens=100))
    await engine.drain(0)
    await asyncio.to_thread(engine.close)
    assert (await asyncio.wait_for(_all(stream), 5))[-1].finish_reason is FinishReason.ABORT


async def test_an_aborted_id_is_free_again_once_the_engine_let_go(engine: AsyncEngine) -> None:
    """A step in flight must not answer the new request with the old one's tokens."""
    stream = engine.submit(call("a", max_tokens=100))
    async for _ in stream:
        break
    stream.abort()
    await until(lambda: not engine._streams)
    outputs = await asyncio.wait_for(_all(engine.submit(call("a", max_tokens=2))), 5)
    assert sum(len(output.token_ids) for output in outputs) == 2


async def test_outputs_lost_with_a_failing_step_still_end_their_streams(
    engine: AsyncEngine, llm_engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(event: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(llm_engine.metrics, "on_step", broken)
    outputs = await asyncio.wait_for(_all(engine.submit(call("a", max_tokens=1))), 5)
    assert failed_with(outputs[-1].error, EngineDeadError)


async def test_drain_lets_running_requests_finish_and_takes_no_more(engine: AsyncEngine) -> None:
    stream = engine.submit(call("a", max_tokens=20))
    drained = asyncio.create_task(engine.drain(5))
    await asyncio.sleep(0.005)
    with pytest.raises(ShuttingDownError):
        engine.submit(call("b"))
    assert [output async for output in stream][-1].finish_reason is FinishReason.LENGTH
    await asyncio.wait_for(drained, 5)


async def test_drain_aborts_what_outlives_the_timeout(engine: AsyncEngine) -> None:
    stream = engine.submit(call("a", max_tokens=110))
    await engine.drain(0.02)
    outputs = [output async for output in stream]
    assert outputs[-1].finish_reason is FinishReason.ABORT
    assert sum(len(output.token_ids) for output in outputs) < 110


async def test_a_stalled_step_shows_in_health(engine: AsyncEngine, llm_engine: LLMEngine) -> None:
    assert engine.unhealthy_reason() is None
    executor = llm_engine.executor
    assert isinstance(executor, SlowExecutor)
    executor.delay = 0.6
    stream = engine.submit(call("a", max_tokens=1))
    await until(lambda: engine.unhealthy_reason() is not None)
    assert [output async for output in stream]
    await until(lambda: engine.unhealthy_reason() is None)


async def test_a_bug_in_the_engine_reaches_every_client(
    engine: AsyncEngine, llm_engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the scheduler itself raises, no stream is left waiting."""

    submitted = threading.Event()

    def broken(now: float) -> StepPlan:
        submitted.wait(5)  # on a busy machine the engine would be dead before all have come
        raise KeyError("bug")

    monkeypatch.setattr(llm_engine.scheduler, "schedule", broken)
    streams = [engine.submit(call(str(i))) for i in range(3)]
    submitted.set()
    for stream in streams:
        last = (await asyncio.wait_for(_all(stream), 5))[-1]
        assert failed_with(last.error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        engine.submit(call("later"))
    assert "bug" in (engine.unhealthy_reason() or "")


async def test_a_state_that_cannot_be_copied_ends_no_request(
    engine: AsyncEngine, llm_engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(llm_engine, "snapshot", fail)
    stream = engine.submit(call("runs", max_tokens=50))
    with pytest.raises(EngineError, match="cannot be copied"):
        await asyncio.wait_for(engine.snapshot(), 5)
    assert (await _all(stream))[-1].finish_reason == FinishReason.LENGTH


def test_streams_of_a_closed_event_loop_leave() -> None:
    """After a second ``asyncio.run`` their ids are free, and a drain does not wait for them."""
    engine = AsyncEngine(LLMEngine(SlowExecutor()))

    async def leave() -> None:
        engine.submit(call("running", max_tokens=100))
        engine.submit(call("done", max_tokens=1))

    async def come_back() -> None:
        assert len(await _all(engine.submit(call("other")))) == 5
        await until(lambda: not engine._streams)
        for request_id in ("running", "done"):
            assert len(await _all(engine.submit(call(request_id)))) == 5

    try:
        asyncio.run(leave())
        time.sleep(0.02)  # so that the last output of one has been lost
        asyncio.run(asyncio.wait_for(come_back(), 10))
    finally:
        engine.close()


async def test_what_is_no_exception_ends_the_engine(
    engine: AsyncEngine, llm_engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running and later requests fail with it; no stream waits for a thread that is gone."""

    def panic(plan: StepPlan) -> StepResult:
        raise Panic("panicked")

    monkeypatch.setattr(llm_engine.executor, "execute", panic)
    last = (await asyncio.wait_for(_all(engine.submit(call("a"))), 5))[-1]
    assert failed_with(last.error, EngineDeadError) and "panicked" in last.error.message
    await until(lambda: engine._link.why_ended() is not None)
    with pytest.raises(EngineDeadError):
        engine.submit(call("later"))


async def test_a_full_queue_refuses_at_once_and_takes_again_once_it_has_moved() -> None:
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=1))
    executor = SlowExecutor()
    executor.delay = 0.05
    engine = AsyncEngine(LLMEngine(executor, config=config), max_queued_requests=2)
    try:
        running = engine.submit(call("running", max_tokens=100))
        await until(lambda: engine.status.stats.num_running == 1)
        # While a step runs they lie in the inbox, and count there as well.
        waiting = [engine.submit(call(f"w{i}")) for i in range(2)]
        with pytest.raises(QueueFullError, match="requests wait already, and at most 2 may"):
            engine.submit(call("refused"))
        await until(lambda: engine.status.stats.num_waiting == 2)
        with pytest.raises(QueueFullError):
            engine.submit(call("refused"))
        running.abort()
        await until(lambda: engine.status.stats.num_waiting < 2)
        streams = [*waiting, engine.submit(call("refused"))]
        ends = [(await _all(stream))[-1].finish_reason for stream in streams]
        assert ends == [FinishReason.LENGTH] * 3
    finally:
        engine.close()


async def _all(stream: Any) -> list[Any]:
    return [output async for output in stream]
