"""The engine alone: no HTTP, no event loop, no second thread. The caller runs the loop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from twostroke.bench.options import OfflineBenchOptions
from twostroke.bench.workload import draw_prompt
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.observability.profile import NO_PROFILE, SCHEDULING, SERIALISE, StepProfiler


@dataclass(slots=True)
class OfflineResult:
    """Counts, and the seconds that each step took.

    Attributes:
        accepted: Tokens that had been drafted.
        rejected: Drafts that were wrong.
        prefill_steps: Those that computed prompt tokens, be it beside others that decoded.
        decode_steps: Those in which every request decoded.
        prefill_profile: Seconds by component over all ``prefill_steps``, where profiled.
        decode_profile: Seconds by component over all ``decode_steps``, where profiled.
            Making events (``serialise``) comes on top of the steps' own seconds.
    """

    num_requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    duration: float = 0.0
    accepted: int = 0
    rejected: int = 0
    prefill_steps: list[float] = field(default_factory=list)
    decode_steps: list[float] = field(default_factory=list)
    prefill_profile: Counter[str] = field(default_factory=Counter)
    decode_profile: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class OfflineProfile:
    """What a profiled run needs.

    Attributes:
        profiler: That the engine and its executor were made with.
        serialise: Makes a client's event of an output.
    """

    profiler: StepProfiler
    serialise: Callable[[RequestOutput], object]

    def add_step(self, outputs: Sequence[RequestOutput], seconds: Counter[str]) -> None:
        """Make the step's events, and add its seconds to those of its kind."""
        with self.profiler.measure(SERIALISE):
            for output in outputs:
                self.serialise(output)
        seconds.update(self.profiler.take())


def run_offline(
    engine: LLMEngine,
    options: OfflineBenchOptions,
    seed: int,
    done: Callable[[], None] = lambda: None,
    profile: OfflineProfile | None = None,
) -> OfflineResult:
    """Run random prompts through the engine, ``batch_size`` at once, after a warm-up.

    Args:
        done: Called as each request ends.
        profile: Given, the run is profiled; the engine has the same profiler.

    Raises:
        InvalidRequestError: The lengths do not fit the model.
        EngineError: A request failed.
    """
    random = Random(f"{seed} offline")
    # Greedy, so that the run repeats; the end token is ignored, so that its length does.
    params = SamplingParams(temperature=0, max_tokens=options.output_len, ignore_eos=True)
    calls = [
        GenerationRequest(
            request_id=f"bench-{i}",
            prompt_token_ids=draw_prompt(random, options.input_len, engine.info.vocab_size),
            params=params,
        )
        for i in range(options.num_prompts + 1)
    ]
    _run(engine, calls[:1], 1, lambda: None, None)
    if profile is not None:
        profile.profiler.take()  # the warm-up's
    return _run(engine, calls[1:], options.batch_size or options.num_prompts, done, profile)


def _run(
    engine: LLMEngine,
    calls: Sequence[GenerationRequest],
    max_requests: int,
    done: Callable[[], None],
    profile: OfflineProfile | None,
) -> OfflineResult:
    result = OfflineResult(
        num_requests=len(calls), input_tokens=sum(len(call.prompt_token_ids) for call in calls)
    )
    waiting = iter(calls)
    under_way, step = 0, -1
    profiler = profile.profiler if profile else NO_PROFILE
    began = time.perf_counter()
    while True:
        while under_way < max_requests and (call := next(waiting, None)) is not None:
            engine.submit(call)
            under_way += 1
        if not under_way:
            break
        started = time.perf_counter()
        # What the engine and the executor do not measure themselves is scheduling.
        with profiler.measure(SCHEDULING):
            outputs = engine.step()
        seconds = time.perf_counter() - started
        # The latest only: copying all of them each time would cost more and more.
        event = engine.recorder.events(step)[-1]
        step = event.step
        prefill = any(share.num_prompt_tokens for share in event.scheduled)
        (result.prefill_steps if prefill else result.decode_steps).append(seconds)
        if profile is not None:
            profile.add_step(outputs, result.prefill_profile if prefill else result.decode_profile)
        for output in outputs:
            raise_output_error(output)
            result.output_tokens += len(output.token_ids)
            result.accepted += output.num_accepted_drafts
            result.rejected += len(output.draft_token_ids) - output.num_accepted_drafts
            if output.finished:
                under_way -= 1
                done()
    result.duration = time.perf_counter() - began
    return result
