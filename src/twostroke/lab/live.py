"""Short live runs: engines on one model, requests, and how long their steps take."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine

# What a live run may take for its longest prompt, and how a slow machine is recognised.
PROMPT_SECONDS, PROBE_TOKENS = 2.5, 256


@dataclass(frozen=True, slots=True)
class LiveBench:
    """What live runs need.

    Attributes:
        model: What ``--model`` takes.
        load: Makes an engine (``startup.load_engine``).
    """

    model: str
    load: Callable[[EngineConfig], LLMEngine]

    @contextmanager
    def engine(self, **options: Any) -> Iterator[LLMEngine]:
        """A warmed-up engine without a prefix cache: each request computes its own prompt."""
        shared = {"model": self.model, "enable_prefix_caching": False}
        with closing(self.load(EngineConfig.from_flat({**shared, **options}))) as engine:
            time_to_first_token(engine, greedy("warm-up", [5] * 64, 1))
            yield engine


def greedy(
    request_id: str, prompt: list[int], num_tokens: int, *, cache_salt: str = ""
) -> GenerationRequest:
    """A request for exactly ``num_tokens`` tokens."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return GenerationRequest(
        request_id=request_id, prompt_token_ids=prompt, params=params, cache_salt=cache_salt
    )


def random_prompt(rng: random.Random, engine: LLMEngine, num_tokens: int) -> list[int]:
    """Tokens that no text has."""
    return rng.choices(range(engine.info.vocab_size), k=num_tokens)


def take_step(engine: LLMEngine) -> list[RequestOutput]:
    """One step; an experiment whose requests fail measures nothing, so their errors are raised."""
    outputs = engine.step()
    for output in outputs:
        raise_output_error(output)
    return outputs


def run_to_end(engine: LLMEngine) -> int:
    """Step until nothing is left; returns the number of steps."""
    steps = 0
    while engine.has_work():
        take_step(engine)
        steps += 1
    return steps


def time_to_first_token(engine: LLMEngine, call: GenerationRequest) -> float:
    """Seconds from submission to the first token of a request that is alone; then it is aborted."""
    began = time.perf_counter()
    engine.submit(call)
    while not take_step(engine):
        pass
    seconds = time.perf_counter() - began
    engine.abort(call.request_id)
    return seconds


def prompt_seconds(engine: LLMEngine, num_tokens: int, rounds: int = 3) -> float:
    """Median seconds until the first token behind a prompt of so many tokens, alone."""
    rng = random.Random(num_tokens)
    return statistics.median(
        time_to_first_token(
            engine, greedy(f"prompt-{number}", random_prompt(rng, engine, num_tokens), 1)
        )
        for number in range(rounds)
    )


def decode_seconds(
    engine: LLMEngine, num_requests: int, context: int = 16, num_steps: int = 32
) -> float:
    """Median seconds of a step in which so many requests decode, each behind ``context`` tokens."""
    rng = random.Random(num_requests)
    for number in range(num_requests):
        prompt = random_prompt(rng, engine, context)
        # Enough tokens for all to decode while the last prompts are still computed.
        engine.submit(greedy(f"probe-{number}", prompt, num_steps + 1))
    seconds = []
    while engine.has_work():
        began = time.perf_counter()
        outputs = take_step(engine)
        if len(outputs) == num_requests:
            seconds.append(time.perf_counter() - began)
    # The first of them may have computed a prompt beside.
    return statistics.median(seconds[1:])


def fitting_length(engine: LLMEngine, longest: int, seconds: float = PROMPT_SECONDS) -> int:
    """The longest power of two, up to ``longest``, that this machine computes in the time."""
    per_token = prompt_seconds(engine, PROBE_TOKENS, rounds=2) / PROBE_TOKENS
    length, room = PROBE_TOKENS, engine.info.max_model_len - 64
    while 2 * length <= min(longest, room) and 2 * length * per_token <= seconds:
        length *= 2
    return length


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds between two tokens of running requests, at worst, as a long prompt arrives.

    ``quiet``: before it; ``ttft``: that of the long prompt.
    """

    quiet: float
    worst: float
    ttft: float


def gaps_of_an_arrival(engine: LLMEngine, length: int, running: int = 4, lead: int = 8) -> Gaps:
    """Let requests decode, add a long prompt, and go on past its first token."""
    rng = random.Random(length)
    small = [f"running-{number}" for number in range(running)]
    for request_id in small:
        engine.submit(greedy(request_id, random_prompt(rng, engine, 32), 512))
    last: dict[str, float] = {}
    quiet = max(_step_gap(engine, last) for _ in range(lead))
    arrived = time.perf_counter()
    engine.submit(greedy("long", random_prompt(rng, engine, length), lead))
    worst = 0.0
    while "long" not in last:
        worst = max(worst, _step_gap(engine, last))
    ttft = last["long"] - arrived
    for request_id in (*small, "long"):
        engine.abort(request_id)
    run_to_end(engine)
    return Gaps(quiet, worst, ttft)


def _step_gap(engine: LLMEngine, last: dict[str, float]) -> float:
    """One step, and the longest gap that it ended; ``last`` has each request's last token time."""
    outputs = take_step(engine)
    now = time.perf_counter()
    gap = max((now - last[o.request_id] for o in outputs if o.request_id in last), default=0.0)
    last.update((output.request_id, now) for output in outputs)
    return gap


def run_batch(engine: LLMEngine, lengths: Sequence[tuple[int, int]], seed: int = 0) -> float:
    """Seconds that requests of (prompt, answer) tokens take, all there from the start."""
    rng = random.Random(seed)
    calls = [
        greedy(f"{number}", random_prompt(rng, engine, prompt), answer)
        for number, (prompt, answer) in enumerate(lengths)
    ]
    began = time.perf_counter()
    for call in calls:
        engine.submit(call)
    run_to_end(engine)
    return time.perf_counter() - began
