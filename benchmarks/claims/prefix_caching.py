"""What prefix caching does to the time to first token when requests share a long system prompt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, median, milliseconds, spread
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, time_to_first_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    shared: int = 2000
    unshared: int = 48
    requests: int = 6


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    load = load or Workload()
    budget = load.shared + load.unshared
    variants = {
        "on": {"enable_prefix_caching": True, "max_num_batched_tokens": budget},
        "off": {"enable_prefix_caching": False, "max_num_batched_tokens": budget},
    }
    later: dict[str, list[float]] = {name: [] for name in variants}
    first: dict[str, list[float]] = {name: [] for name in variants}
    with bench.engines(variants) as engines:
        for number in range(bench.rounds):
            bench.say(f"prefix caching: round {number + 1} of {bench.rounds}")
            for name, engine in engines.items():
                times = _times(engine, number, load)
                first[name].append(times[0])
                later[name].append(median(times[1:]))
    ratios = [off / on for off, on in zip(later["off"], later["on"], strict=True)]
    return Claim(
        name="prefix_caching",
        claim=f"Prefix caching, TTFT behind a shared system prompt of {load.shared:,} tokens",
        measured=(
            f"{spread(ratios)} sooner: {milliseconds(median(later['on']))} against "
            f"{milliseconds(median(later['off']))}; the first request, which fills the cache: "
            f"{milliseconds(median(first['on']))} against {milliseconds(median(first['off']))}"
        ),
        conditions=(
            f"{load.unshared} tokens of its own after the shared ones, one request at a time,"
            f" {load.requests} of them after the first, whole prompt in one step, greedy,"
            f" {bench.name}; median of {bench.rounds} rounds, each with its own system prompt"
        ),
        figures={"ratio": ratios, "ttft_seconds": later, "ttft_seconds_of_the_first": first},
    )


def _times(engine: LLMEngine, seed: int, load: Workload) -> list[float]:
    """TTFT of the first request with a new system prompt, then of those after it."""
    rng = random.Random(seed)
    shared = random_prompt(rng, engine, load.shared)
    prompts = [shared + random_prompt(rng, engine, load.unshared) for _ in range(1 + load.requests)]
    return [
        time_to_first_token(engine, greedy(f"{seed}-{i}", prompt, 1))
        for i, prompt in enumerate(prompts)
    ]
