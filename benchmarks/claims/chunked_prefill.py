"""What chunked prefill does to running requests, and what the long prompt pays for it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, median, milliseconds, spread
from twostroke.core.config import SchedulerConfig
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, take_step

LONG = "long"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``chunks`` are the values of ``--max-prefill-chunk`` that are compared with none."""

    long_prompt: int = 8000
    running: int = 8
    prompt: int = 256
    lead: int = 8
    chunks: tuple[int, ...] = (256, 512, 2048)

    @property
    def budget(self) -> int:
        return self.long_prompt + self.running * self.prompt


@dataclass(frozen=True, slots=True)
class Arrival:
    """Worst gap in seconds between two tokens of a running request, before and after."""

    quiet_gap: float
    worst_gap: float
    ttft: float


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    load = load or Workload()
    options: dict[str, Any] = {
        "max_num_batched_tokens": load.budget,
        "enable_prefix_caching": False,
    }
    variants: dict[str, dict[str, Any]] = {"unchunked": options}
    variants |= {str(chunk): {**options, "max_prefill_chunk": chunk} for chunk in load.chunks}
    seen: dict[str, list[Arrival]] = {name: [] for name in variants}
    with bench.engines(variants) as engines:
        for number in range(bench.rounds):
            for name, engine in engines.items():
                bench.say(f"chunked prefill: round {number + 1} of {bench.rounds}, {name}")
                seen[name].append(_arrive(engine, number, load))
    ratios = {
        name: [
            whole.worst_gap / part.worst_gap
            for whole, part in zip(seen["unchunked"], seen[name], strict=True)
        ]
        for name in variants
    }
    chunks = "; ".join(
        f"chunk {chunk:,}: {spread(ratios[str(chunk)])} shorter, {_text(seen[str(chunk)])}"
        for chunk in load.chunks
    )
    quiet = median([arrival.quiet_gap for arrival in seen["unchunked"]])
    return Claim(
        name="chunked_prefill",
        claim=(
            "Chunked prefill, worst inter-token gap of running requests as a prompt of"
            f" {load.long_prompt:,} arrives"
        ),
        measured=f"{chunks}; unchunked: {_text(seen['unchunked'])}",
        conditions=(
            f"{load.running} requests decoding behind prompts of {load.prompt} tokens (worst gap"
            f" before the arrival {milliseconds(quiet)}), --max-num-batched-tokens {load.budget},"
            " --max-prefill-chunk as said (the default budget of"
            f" {SchedulerConfig().max_num_batched_tokens:,} acts as a chunk of that size), no"
            f" prefix cache, greedy, {bench.name}; median of {bench.rounds} rounds"
        ),
        figures={
            "ratio_of_worst_gaps": {name: ratios[name] for name in variants if name != "unchunked"},
            "worst_gap_seconds": {name: [a.worst_gap for a in seen[name]] for name in variants},
            "worst_gap_before_seconds": {
                name: [a.quiet_gap for a in seen[name]] for name in variants
            },
            "long_prompt_ttft_seconds": {name: [a.ttft for a in seen[name]] for name in variants},
        },
    )


def _text(arrivals: list[Arrival]) -> str:
    gap = milliseconds(median([arrival.worst_gap for arrival in arrivals]))
    return (
        f"{gap} with a TTFT of {milliseconds(median([arrival.ttft for arrival in arrivals]))} for"
        " the long prompt"
    )


def _arrive(engine: LLMEngine, seed: int, load: Workload) -> Arrival:
    """Run the small requests, add the long prompt, and go on a few tokens past its first."""
    rng = random.Random(seed)
    small = [f"{seed}-{index}" for index in range(load.running)]
    for request_id in small:
        engine.submit(
            greedy(request_id, random_prompt(rng, engine, load.prompt), _more_than_enough(load))
        )
    last: dict[str, float] = {}
    quiet_gap = max(_steps(engine, last) for _ in range(load.lead))
    arrived = time.perf_counter()
    engine.submit(greedy(LONG, random_prompt(rng, engine, load.long_prompt), load.lead))
    worst_gap, ttft = 0.0, 0.0
    while not ttft:
        worst_gap = max(worst_gap, _steps(engine, last))
        if LONG in last:
            ttft = last[LONG] - arrived
    worst_gap = max(worst_gap, _steps(engine, last))
    assert all(request_id in engine.scheduler.requests for request_id in small), (
        "a running request ended too early"
    )
    for request_id in (*small, LONG):
        engine.abort(request_id)
    return Arrival(quiet_gap, worst_gap, ttft)


def _more_than_enough(load: Workload) -> int:
    """Tokens that keep a small request running until the long prompt has come through."""
    return 2 * load.lead + 4 + load.long_prompt // min(load.chunks)


def _steps(engine: LLMEngine, last: dict[str, float]) -> float:
    """One step, and the longest gap that it ended; ``last`` has each request's last token time."""
    outputs = take_step(engine)
    now = time.perf_counter()
    gap = max((now - last[o.request_id] for o in outputs if o.request_id in last), default=0.0)
    last.update((output.request_id, now) for output in outputs)
    return gap
