"""`--admission predicted` on a clock of its own: what is let in is in time, the rest is refused.

Everything that happens is a matter of the numbers alone, so the counts are exact ones.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import NamedTuple

import pytest

from tests.fakes import FakeExecutor
from twostroke.core.config import EngineConfig, ObservabilityConfig, SchedulerConfig
from twostroke.core.errors import PredictedLateError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.target_limit import TargetLimit
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.observability.events import RefusedRequest

STEP, TOKENS, PLACES, TARGET = 0.01, 8, 2, 0.2
CAPACITY = PLACES / (STEP * TOKENS)  # requests a second


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedExecutor(FakeExecutor):
    """A step takes ten milliseconds of the clock, and ``slower`` times as much after a while."""

    def __init__(self, clock: Clock, slow_after: float, slower: float) -> None:
        super().__init__()
        self._clock = clock
        self._slow_after, self._slower = slow_after, slower

    def execute(self, plan: StepPlan) -> StepResult:
        self._clock.now += STEP * (self._slower if self._clock.now > self._slow_after else 1.0)
        return super().execute(plan)


class Outcome(NamedTuple):
    observed: int
    missed: int
    refused: list[RefusedRequest]


def flood(policy: str, load: float, count: int, slower: float = 1.0) -> Outcome:
    """``count`` calls at ``load`` times the engine's capacity, evenly; ``slower`` from halfway."""
    clock = Clock()
    scheduler = SchedulerConfig(
        max_num_seqs=PLACES,
        admission="predicted",
        policy=policy,  # type: ignore[arg-type]
    )
    targets = ObservabilityConfig(target=(f"ttft=p95:{TARGET}",))
    config = EngineConfig(scheduler=scheduler, observability=targets)
    executor = TimedExecutor(clock, count / (load * CAPACITY) / 2, slower)
    engine = LLMEngine(executor, None, config, clock=clock)
    refused: list[RefusedRequest] = []
    limit = TargetLimit(scheduler, engine.ttft_targets, clock, refused.append, lambda call: 0)
    messages = MessageLoop(engine, SimpleQueue(), lambda reply: None)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    arrivals = [number / (load * CAPACITY) for number in range(count)]
    while arrivals or engine.has_work():
        if not engine.has_work():
            clock.now = max(clock.now, arrivals[0])
        told = messages.report().load
        assert told is not None
        limit.take(told)
        while arrivals and arrivals[0] <= clock.now:
            call = GenerationRequest(
                request_id=str(len(arrivals)),
                prompt_token_ids=[1, 2, 3],
                params=params,
                waited=clock.now - arrivals.pop(0),
            )
            try:
                limit.check(call)
            except PredictedLateError:
                continue
            engine.submit(call)
            limit.add(call, 1)
        engine.step()
    assert engine.targets is not None
    (report,) = engine.targets.report()
    # Those that had to be refused after a wait.
    refused += [one for event in engine.recorder.events() for one in event.refused]
    return Outcome(round(report.total_observations), round(report.total_misses), refused)


@pytest.mark.parametrize("policy", ["fcfs", "deadline"])
@pytest.mark.parametrize("load", [2, 10])
def test_those_let_in_are_in_time(policy: str, load: int) -> None:
    """But for some of the first: until answers end, nothing is known of their length."""
    outcome = flood(policy, load, 2000)
    assert outcome.observed + len(outcome.refused) == 2000
    assert outcome.missed <= 5 <= 0.05 * outcome.observed
    # And no more are refused than must be: those let in are what the engine can do meanwhile.
    assert outcome.observed >= 0.9 * 2000 / load


def test_nothing_is_refused_below_capacity() -> None:
    outcome = flood("deadline", 0.9, 300)
    assert (outcome.observed, outcome.missed, outcome.refused) == (300, 0, [])


def test_the_same_calls_have_the_same_fate() -> None:
    assert flood("deadline", 5, 200) == flood("deadline", 5, 200)


def test_an_engine_that_becomes_slow_answers_in_time_or_refuses() -> None:
    """Three times slower in mid-flood: what had been let in before must not all come late."""
    outcome = flood("fcfs", 4, 1000, slower=3.0)
    assert outcome.observed + len(outcome.refused) == 1000
    assert outcome.missed <= 0.05 * outcome.observed
    # The second half is served at a third of the speed.
    assert outcome.observed >= 0.8 * (500 / 4 + 500 / 4 / 3)
