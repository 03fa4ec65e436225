"""Continuous against static batching, in throughput, on outputs whose lengths have a heavy tail."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, greedy, median, random_prompt, run_to_end, spread
from twostroke.engine.client import GenerationRequest
from twostroke.engine.engine import Engine

TARGET = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All requests are there from the start; every round draws its own.

    So many that the last stragglers do not decide: both ways of batching wait for those alone.
    """

    num_requests: int = 512
    max_num_seqs: int = 16
    prompt: tuple[int, int] = (32, 128)
    output: tuple[int, int] = (4, 512)
    output_median: float = 32
    output_sigma: float = 1.3

    def draw(self, seed: int, engine: Engine) -> list[GenerationRequest]:
        rng = random.Random(seed)
        low, high = self.output
        calls = []
        for index in range(self.num_requests):
            wanted = round(rng.lognormvariate(math.log(self.output_median), self.output_sigma))
            prompt = random_prompt(rng, engine, rng.randint(*self.prompt))
            calls.append(greedy(f"{seed}-{index}", prompt, min(max(wanted, low), high)))
        return calls


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    load = load or Workload()
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
    return Claim(
        name="continuous_batching",
        claim="Continuous against static batching, throughput",
        measured=f"{spread(ratios)}: {rates['continuous']:.0f} against {rates['static']:.0f} output tokens/s, "
        f"in {fewer:.2f}x fewer steps",
        conditions=f"{load.num_requests} requests at once, --max-num-seqs {load.max_num_seqs}, prompts of "
        f"{load.prompt[0]} to {load.prompt[1]} tokens, outputs lognormal (median {load.output_median:g}, sigma "
        f"{load.output_sigma:g}) cut to {load.output[0]} to {load.output[1]}, greedy, no prefix cache, {bench.name}; "
        f"median of {bench.rounds} rounds, each with its own draw",
        target=f"{TARGET:g}x or more",
        met=median(ratios) >= TARGET,
        figures={"ratio": ratios, "seconds": seconds, "steps": steps, "output_tokens": num_tokens},
    )
