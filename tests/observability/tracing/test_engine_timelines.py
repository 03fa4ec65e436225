"""Protects: from an engine's step events follow the timelines that are noted beside an engine."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from tests.fakes import FakeExecutor
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.tracing.attempts import Attempt, Outcome, joined_timelines
from twostroke.observability.tracing.engine_timelines import EngineTimelines
from twostroke.observability.tracing.timelines import TimelineObserver
from twostroke.observability.tracing.trace import MAX_ATTEMPTS, MAX_TIMELINES, RequestTrace

LABELS = {"engine": "0", "model_name": "fake"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedExecutor(FakeExecutor):
    """Each pass takes ten milliseconds."""

    clock: Clock

    def execute(self, plan: StepPlan) -> StepResult:
        self.clock.now += 0.01
        return super().execute(plan)


def make_trace() -> RequestTrace:
    return RequestTrace(None, {}, lambda trace: None)


def a_call(name: str, draw: random.Random) -> GenerationRequest:
    length, shared = draw.randrange(5, 90), draw.random() < 0.5
    prompt = [1 + (i if shared else draw.randrange(40)) % 40 for i in range(length)]
    params = SamplingParams(
        max_tokens=draw.randrange(1, 80),
        ignore_eos=True,
        detokenize=False,
        n=draw.choice([1, 1, 2]),
        seed=draw.randrange(100),
    )
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params)


@pytest.mark.parametrize("seed", range(6))
def test_events_tell_what_an_observer_beside_the_engine_sees(seed: int) -> None:
    """Chunks, prefix hits, preemptions, waiting, progress, aborts: a mix of 12 calls."""
    draw, clock = random.Random(seed), Clock()
    names = [f"call-{number}" for number in range(12)]
    beside = {name: make_trace() for name in names}
    apart = {name: make_trace() for name in names}
    timelines = EngineTimelines(apart, clock)
    executor = TimedExecutor(num_blocks=60, block_size=4, max_model_len=200)
    executor.clock = clock
    scheduler = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=5)
    config = EngineConfig(cache=CacheConfig(block_size=4), scheduler=scheduler)
    observers = [TimelineObserver(beside)]
    engine = LLMEngine(executor, None, config, observers=observers, clock=clock)
    waiting, last = [a_call(name, draw) for name in names], -1
    aborted = draw.choice(names)
    while waiting or engine.has_work():
        if waiting and draw.random() < 0.3:
            message = engine.prepare(waiting.pop())
            engine.add(message)
            assert timelines.begin(message.request, None, LABELS)
        outputs = engine.step()
        if draw.random() < 0.05:
            outputs += engine.abort(aborted)
        for event in (events := engine.recorder.events(last)):
            timelines.on_step(event)
            last = events[-1].step
        timelines.on_outputs(outputs)
    for name in names:
        timelines.end(name, Outcome.FAILED)
        assert [each.outcome for each in apart[name].attempts] == [Outcome.ENDED]
        assert [asdict(each) for each in apart[name].samples()] == [
            asdict(each) for each in beside[name].timelines
        ]
        assert apart[name].num_timelines == beside[name].num_timelines
    assert any(each.num_preemptions for name in names for each in apart[name].samples())
    assert not timelines._live and not timelines._calls


def test_two_engines_are_two_attempts_and_one_timeline() -> None:
    """The first engine is lost after its first tokens; the second goes on from them."""
    trace, clock = make_trace(), Clock()
    first, second = (EngineTimelines({"a": trace}, clock) for _ in range(2))
    params = SamplingParams(max_tokens=20, ignore_eos=True, detokenize=False)
    call = GenerationRequest(request_id="a", prompt_token_ids=[1, 2, 3], params=params)
    executor = TimedExecutor(num_blocks=60, block_size=4, max_model_len=200)
    executor.clock = clock
    engine = LLMEngine(executor, None, clock=clock)
    message = engine.prepare(call)
    first.begin(message.request, None, LABELS)
    engine.add(message)
    outputs = [output for _ in range(3) for output in engine.step()]
    for event in engine.recorder.events(-1):
        first.on_step(event)
    first.on_outputs(outputs)
    first.lose("it was killed")
    counts = {each.index: len(each.token_ids) for each in outputs}
    second.begin(message.request, counts, LABELS | {"engine": "1"})
    assert [(each.engine, each.outcome) for each in trace.attempts] == [
        ("0", Outcome.LOST),
        ("1", None),
    ]
    assert trace.num_timelines == call.params.n
    lost, whole = trace.attempts[0].timelines[0], trace.samples()[0]
    assert lost.first_token is not None and lost.ended == clock.now
    assert (whole.first_token, whole.arrival) == (lost.first_token, lost.arrival)
    assert whole.ended is None and whole.finish_reason is None


def test_what_is_kept_of_a_call_is_bounded() -> None:
    """16 samples, wherever they go on, and 64 attempts of them."""
    trace = make_trace()
    for number in range(40):
        ids = [f"prompt-{number}#0", f"prompt-{number}#1"]
        trace.open_attempt("0", "m", 0.0, ids, resumed=False)
    assert len(trace.attempts) == MAX_TIMELINES // 2 and trace.num_timelines == 80
    for _ in range(100):
        trace.open_attempt("1", "m", 0.0, ["prompt-0#0"], resumed=True)
    assert len(trace.attempts) == MAX_ATTEMPTS
    assert trace.num_timelines == 80


def test_one_attempt_is_its_own_timelines() -> None:
    attempt = Attempt("0", "m", 0.0)
    assert joined_timelines([attempt]) == []
