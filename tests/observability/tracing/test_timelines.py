"""Protects: what the engine notes of traced calls, and that it notes nothing of others."""

from __future__ import annotations

import pickle
from itertools import pairwise

from tests.fakes import FakeExecutor
from tests.observability.runs import make_request
from twostroke.core.config import CacheConfig, EngineConfig, SchedulerConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.tracing.timelines import (
    MAX_SAMPLES,
    Progress,
    Sampling,
    Timeline,
    TimelineObserver,
)


class Keeper(list[Timeline]):
    """Implements ``TimelineKeeper``."""

    def keep(self, timeline: Timeline) -> bool:
        self.append(timeline)
        return True


def run(keeper: Keeper, *, max_tokens: int = 100, prompt: int = 50) -> LLMEngine:
    """Two calls on the fake executor, of which the first is traced."""
    observer = TimelineObserver({"traced": keeper})
    config = EngineConfig(
        cache=CacheConfig(block_size=4),
        scheduler=SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4),
    )
    executor = FakeExecutor(num_blocks=200, block_size=4, max_model_len=200)
    engine = LLMEngine(executor, None, config, observers=[observer])
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, detokenize=False)
    for name in ("traced", "other"):
        engine.submit(
            GenerationRequest(
                request_id=name, prompt_token_ids=[1 + i % 40 for i in range(prompt)], params=params
            )
        )
    while engine.has_work():
        engine.step()
    return engine


def test_chunks_progress_and_end() -> None:
    keeper = Keeper()
    run(keeper)
    (timeline,) = keeper
    assert [chunk.num_tokens for chunk in timeline.chunks] == [16, 16, 16, 2]
    assert [chunk.start for chunk in timeline.chunks] == [0, 16, 32, 48]
    assert timeline.finish_reason is FinishReason.LENGTH
    assert timeline.num_output_tokens == 100
    assert [p.step % 32 for p in timeline.progress] == [0] * len(timeline.progress)
    assert 2 <= len(timeline.progress) <= 4
    times = [timeline.arrival, timeline.first_scheduled, timeline.first_token, timeline.ended]
    assert times == sorted(time or 0.0 for time in times)


def test_a_long_answer_keeps_few_samples() -> None:
    """Every second one goes when there are too many: they stay spread over the answer."""
    timeline = Timeline("a", 0, 0.0, Sampling.of(SamplingParams()), 3)
    for step in range(0, 32 * 1000, 32):
        timeline.sample(Progress(float(step), step, step, 1))
    steps = [progress.step for progress in timeline.progress]
    gaps = {after - before for before, after in pairwise(steps)}
    assert MAX_SAMPLES // 2 <= len(steps) <= MAX_SAMPLES
    assert gaps == {timeline.stride} and steps[-1] > 30_000


def test_an_abort_ends_the_timeline() -> None:
    keeper = Keeper()
    observer = TimelineObserver({"traced": keeper})
    engine = LLMEngine(FakeExecutor(num_blocks=200, block_size=4), observers=[observer])
    params = SamplingParams(max_tokens=100, ignore_eos=True, detokenize=False, n=2)
    call = GenerationRequest(request_id="traced", prompt_token_ids=[1, 2, 3], params=params)
    engine.submit(call)
    engine.step()
    engine.abort("traced")
    assert [t.request_id for t in keeper] == ["traced#0", "traced#1"]
    assert {t.finish_reason for t in keeper} == {FinishReason.ABORT}
    assert all(t.ended is not None and t.ended >= t.arrival for t in keeper)


def test_what_waits_for_a_collector_is_small() -> None:
    """Thousands of traces may wait: what a client sent, such as a schema, is not kept with them."""
    request = make_request(num_prompt_tokens=5000)
    request.params = SamplingParams(
        logit_bias=dict.fromkeys(range(1000), 1.0), stop=("x" * 100,), temperature=0.5
    )
    timeline = Timeline.of(request)
    assert timeline.params.temperature == 0.5
    assert len(pickle.dumps(timeline)) < 1500
