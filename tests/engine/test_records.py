"""Protects: what an engine keeps of itself is read by its own thread and reaches others as values.

So an engine may be in another process, and a hung or dead one can still be looked at.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import pytest_asyncio

from tests.engine.calls import call
from tests.fakes import FakeExecutor
from twostroke.core.config import EngineConfig, ObservabilityConfig
from twostroke.core.errors import EngineError
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine import records
from twostroke.engine.clients.kept_records import KeptRecords
from twostroke.engine.clients.thread import AsyncEngine
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import EngineRecords
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.recorder import Recorder
from twostroke.observability.targets.observer import TargetObserver

READS = ((Recorder, "events"), (EngineMetrics, "render_counts"), (TargetObserver, "report"))


class GatedExecutor(FakeExecutor):
    """A step lasts until ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def execute(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        assert self.gate.wait(20)
        return super().execute(plan)


@pytest.fixture
def executor() -> GatedExecutor:
    return GatedExecutor()


@pytest_asyncio.fixture
async def engine(executor: GatedExecutor) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(
        observability=ObservabilityConfig(target=("ttft=p95:10",)),
        tiers=KVTierConfig(kv_events=True),
    )
    engine = AsyncEngine(LLMEngine(executor, config=config))
    yield engine
    executor.gate.set()
    engine.close()


@contextmanager
def readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """What is read of the observers, and on which thread."""
    read: list[tuple[str, str]] = []

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call_it(*args: Any) -> Any:
            read.append((name, threading.current_thread().name))
            return method(*args)

        return call_it

    with monkeypatch.context() as patch:
        for kind, name in READS:
            patch.setattr(kind, name, watched(name, getattr(kind, name)))
        yield read


async def answer(engine: AsyncEngine, name: str, max_tokens: int = 5) -> int:
    outputs = [output async for output in engine.submit(call(name, max_tokens=max_tokens))]
    return sum(len(output.token_ids) for output in outputs)


def generated(metrics: bytes) -> float:
    (line,) = (n for n in metrics.splitlines() if n.startswith(b"vllm:generation_tokens_total"))
    return float(line.split()[-1])


async def test_only_the_engines_thread_reads_what_it_keeps(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a client has after an answer includes all of it."""
    with readers(monkeypatch) as read:
        num_tokens = await answer(engine, "a")
        taken = await engine.records()
        assert generated(taken.metrics) == num_tokens
        assert [report.total_observations for report in taken.targets] == [1]
        events = engine.events()
        assert sum(s.num_new_tokens for e in events for s in e.scheduled) == num_tokens
        assert engine.events(events[-2].step) == events[-1:]
        assert [batch.seq for batch in engine.kv_events()] == [0]
    assert {name for name, _ in read} == {name for _, name in READS}
    assert {thread for _, thread in read} == {"twostroke-engine"}


async def test_a_hung_engine_shows_what_it_sent_last(
    engine: AsyncEngine, executor: GatedExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a step it sends records that are due; all who asked meanwhile get one answer."""
    num_tokens = await answer(engine, "a")
    monkeypatch.setattr(records, "RECORDS_SECONDS", 0.0)
    monkeypatch.setattr(engine._records.answers, "_seconds", 0.01)
    executor.gate.clear()
    executor.entered.clear()
    running = asyncio.ensure_future(answer(engine, "b", max_tokens=1))
    assert await asyncio.to_thread(executor.entered.wait, 20)
    monkeypatch.setattr(records, "RECORDS_SECONDS", 1e9)
    with readers(monkeypatch) as read:
        for _ in range(3):
            metrics = (await engine.records()).metrics
            assert generated(metrics) == num_tokens
            assert b'num_requests_waiting{engine="0",model_name="pilot"} 1.0' in metrics
        assert engine.events() and not read
        executor.gate.set()
        assert await running == 1
        monkeypatch.setattr(engine._records.answers, "_seconds", 20.0)
        assert generated((await engine.records()).metrics) == num_tokens + 1
    assert 1 <= [name for name, _ in read].count("render_counts") <= 2


async def test_an_engine_that_has_ended_shows_its_last_records(engine: AsyncEngine) -> None:
    num_tokens = await answer(engine, "a")
    engine.close()
    assert generated((await engine.records()).metrics) == num_tokens
    assert engine.events()


async def test_metrics_that_cannot_be_shown_end_no_engine(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EngineMetrics) -> bytes:
        raise KeyError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(EngineMetrics, "render_counts", broken)
        with pytest.raises(EngineError, match="cannot be shown"):
            await engine.records()
    assert await answer(engine, "a") == 5
    assert generated((await engine.records()).metrics) == 5


async def test_what_was_answered_never_replaces_what_came_after_it() -> None:
    """An engine sends its last records while a question's answer waits for its turn."""
    kept = KeptRecords(8, {}, publishes_kv=False)
    asked = EngineRecords(b"1", "text/plain")

    def answer(number: int) -> None:
        kept.keep(asked)
        kept.answers.put(number, asked)
        kept.keep(EngineRecords(b"2", "text/plain"))  # as the engine closes

    assert (await kept.ask(answer)).metrics.endswith(b"2")
