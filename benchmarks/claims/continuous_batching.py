"""Continuous against static batching, in throughput, on outputs whose lengths have a heavy tail."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, greedy, median, random_prompt, run_to_end, spread
from twostroke.engine.client import GenerationRequest
from twostroke.engine.engine import Engine

TARGET = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All requests are there from the start; every round draws its own.

    Output lengths follow a Pareto distribution with exponent 1 (half of what is left is at least twice as long), or a
    lognormal one with the given sigma around ``output_median``.
    """

    num_requests: int = 128
    max_num_seqs: int = 16
    prompt: tuple[int, int] = (32, 128)
    output: tuple[int, int] = (8, 1024)
    output_median: float = 32
    output_sigma: float | None = None

    @property
    def lengths(self) -> str:
        if self.output_sigma is None:
            return f"Pareto, exponent 1, {self.output[0]} to {self.output[1]} tokens"
        around = f"lognormal, median {self.output_median:g}, sigma {self.output_sigma:g}"
        return f"{around}, {self.output[0]} to {self.output[1]} tokens"

    def draw_length(self, rng: random.Random) -> int:
        low, high = self.output
        if self.output_sigma is None:
            wanted = low / (1 - rng.random())
        else:
            wanted = rng.lognormvariate(math.log(self.output_median), self.output_sigma)
        return round(min(max(wanted, low), high))

    def draw(self, seed: int, engine: Engine) -> list[GenerationRequest]:
        rng = random.Random(seed)
        calls = []
        for index in range(self.num_requests):
            prompt = random_prompt(rng, engine, rng.randint(*self.prompt))
            calls.append(greedy(f"{seed}-{index}", prompt, self.draw_length(rng)))
        return calls


HEAVY = Workload()
LIGHTER = Workload(output=(4, 512), output_sigma=1.3)


def measure(bench: Workbench, load: Workload = HEAVY, beside: Workload | None = LIGHTER) -> Claim:
    """The target is judged on ``load``; ``beside`` is measured too, to show how much the tail decides."""
    main, figures = _compare(bench, load)
    measured = f"{main} (outputs {load.lengths})"
    every = {"heavy": figures}
    if beside is not None:
        other, every["lighter"] = _compare(bench, beside)
        measured += f"; with a lighter tail {other} (outputs {beside.lengths})"
    return Claim(
        name="continuous_batching",
        claim="Continuous against static batching, throughput",
        measured=measured,
        conditions=f"{load.num_requests} requests at once, --max-num-seqs {load.max_num_seqs}, prompts of "
        f"{load.prompt[0]} to {load.prompt[1]} tokens, greedy, no prefix cache, {bench.name}; "
        f"median of {bench.rounds} rounds, each with its own draw",
        target=f"{TARGET:g}x or more with the heavy tail",
        met=median(figures["ratio"]) >= TARGET,
        figures=every,
    )


def _compare(bench: Workbench, load: Workload) -> tuple[str, dict[str, Any]]:
    """One workload on both: the result in words, and every number behind it."""
    options = {"max_num_seqs": load.max_num_seqs, "enable_prefix_caching": False}
    variants = {name: {**options, "batching": name} for name in ("continuous", "static")}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    steps: dict[str, list[int]] = {name: [] for name in variants}
    num_tokens: list[int] = []
    with bench.engines(variants) as engines:
        for number in range(bench.rounds):
            for name, engine in engines.items():
                bench.say(f"continuous batching: round {number + 1} of {bench.rounds}, {name}")
                calls = load.draw(number, engine)
                began = time.perf_counter()
                for call in calls:
                    engine.submit(call)
                steps[name].append(run_to_end(engine))
                seconds[name].append(time.perf_counter() - began)
            num_tokens.append(sum(call.params.max_tokens or 0 for call in calls))
    ratios = [slow / fast for slow, fast in zip(seconds["static"], seconds["continuous"], strict=True)]
    fewer = median([many / few for many, few in zip(steps["static"], steps["continuous"], strict=True)])
    rates = {name: median([n / s for n, s in zip(num_tokens, seconds[name], strict=True)]) for name in variants}
    words = (
        f"{spread(ratios)}: {rates['continuous']:.0f} against {rates['static']:.0f} output tokens/s, "
        f"in {fewer:.2f}x fewer steps"
    )
    return words, {"ratio": ratios, "seconds": seconds, "steps": steps, "output_tokens": num_tokens}
