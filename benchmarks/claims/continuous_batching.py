"""Continuous against static batching, in throughput, on outputs whose lengths have a heavy tail.

The claim is about models whose weights a step reads from memory; a small one that
stays in the cache does the same work in the same steps, and is shown beside it.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import (
    Workbench,
    median,
    memory_bound_model,
    milliseconds,
    spread,
    weights_megabytes,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, run_to_end, take_step

TARGET = 2.0
PROBE_STEPS, PROBE_PROMPT = 32, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All requests are there from the start; every round draws its own.

    So many that the last stragglers, whom both ways of batching wait for alone, do not decide:
    continuous batching needs 1.16 times the steps of slots that never stand empty. Prompts are
    short, since their work is the same in both.
    """

    num_requests: int = 384
    max_num_seqs: int = 16
    prompt: tuple[int, int] = (8, 16)
    output: tuple[int, int] = (2, 256)
    output_median: float = 16
    output_sigma: float = 1.3

    def draw(self, seed: int, engine: LLMEngine) -> list[GenerationRequest]:
        """The requests of one round; their lengths depend on the seed alone, never on the model."""
        rng = random.Random(seed)
        low, high = self.output
        calls = []
        for index in range(self.num_requests):
            wanted = round(rng.lognormvariate(math.log(self.output_median), self.output_sigma))
            prompt = random_prompt(rng, engine, rng.randint(*self.prompt))
            calls.append(greedy(f"{seed}-{index}", prompt, min(max(wanted, low), high)))
        return calls


@dataclass(slots=True)
class Rounds:
    """What was measured, by way of batching (``continuous`` and ``static``) and round.

    ``step_seconds`` are decode steps with one request and with as many as run at once.
    """

    seconds: dict[str, list[float]]
    steps: dict[str, list[int]]
    num_tokens: list[int]
    step_seconds: tuple[float, float] = (math.nan, math.nan)

    @property
    def ratios(self) -> list[float]:
        return [
            slow / fast
            for slow, fast in zip(self.seconds["static"], self.seconds["continuous"], strict=True)
        ]

    def text(self, load: Workload) -> str:
        """Ratio, rates, steps, and the cost of a full step, which decides what fewer steps save."""
        fewer = median(
            [
                many / few
                for many, few in zip(self.steps["static"], self.steps["continuous"], strict=True)
            ]
        )
        rates = {
            name: median([n / s for n, s in zip(self.num_tokens, seconds, strict=True)])
            for name, seconds in self.seconds.items()
        }
        alone, full = self.step_seconds
        return (
            f"{spread(self.ratios)}: {rates['continuous']:.0f} against {rates['static']:.0f} output"
            f" tokens/s, in {fewer:.2f}x fewer steps; a step for {load.max_num_seqs} requests takes"
            f" {full / alone:.1f} times as long as one for a single request ({milliseconds(full)}"
            f" against {milliseconds(alone)})"
        )

    def figures(self) -> dict[str, object]:
        return {
            "ratio": self.ratios,
            "seconds": self.seconds,
            "steps": self.steps,
            "output_tokens": self.num_tokens,
            "step_seconds": {
                "one_request": self.step_seconds[0],
                "all_slots": self.step_seconds[1],
            },
        }


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    """The claim, on a model that is read from memory.

    It is that of ``--checkpoint``, or a random one of 350 M parameters.
    """
    load = load or Workload()
    with memory_bound_model(bench.checkpoint) as (source, name):
        there = replace(bench, model=source, name=name)
        rounds = run_rounds(there, load)
        conditions = _conditions(there, load)
    return Claim(
        name="continuous_batching",
        claim=(
            "Continuous against static batching, throughput, weights read from memory in each step"
        ),
        measured=rounds.text(load),
        conditions=conditions,
        target=f"{TARGET:g}x or more",
        met=median(rounds.ratios) >= TARGET,
        figures=rounds.figures(),
    )


def measure_same_model(bench: Workbench, load: Workload | None = None) -> Claim:
    """The same on the other claims' model, without a target: pilot stays in the cache."""
    load = load or Workload()
    rounds = run_rounds(bench, load)
    short = median(rounds.ratios) < TARGET
    verdict = (
        f"; short of the {TARGET:g}x that is claimed for weights read from memory" if short else ""
    )
    return Claim(
        name="continuous_batching_same_model",
        claim="The same requests on the model of the other claims, without a target",
        measured=rounds.text(load) + verdict,
        conditions=_conditions(bench, load),
        figures=rounds.figures(),
    )


def run_rounds(bench: Workbench, load: Workload) -> Rounds:
    """Each round's requests, batched both ways in turn; then the steps of the continuous one."""
    options = {"max_num_seqs": load.max_num_seqs, "enable_prefix_caching": False}
    variants = {name: {**options, "batching": name} for name in ("continuous", "static")}
    rounds = Rounds({name: [] for name in variants}, {name: [] for name in variants}, [])
    with bench.engines(variants) as engines:
        for number in range(bench.rounds):
            for name, engine in engines.items():
                bench.say(
                    f"continuous batching: {bench.name}, round {number + 1} of {bench.rounds},"
                    f" {name}"
                )
                calls = load.draw(number, engine)
                began = time.perf_counter()
                for call in calls:
                    engine.submit(call)
                rounds.steps[name].append(run_to_end(engine))
                rounds.seconds[name].append(time.perf_counter() - began)
            rounds.num_tokens.append(sum(call.params.max_tokens or 0 for call in calls))
        engine = engines["continuous"]
        rounds.step_seconds = (step_seconds(engine, 1), step_seconds(engine, load.max_num_seqs))
    return rounds


def step_seconds(engine: LLMEngine, num_requests: int) -> float:
    """Median seconds of a step in which so many requests decode, each behind a few dozen tokens."""
    rng = random.Random(num_requests)
    for index in range(num_requests):
        prompt = random_prompt(rng, engine, PROBE_PROMPT)
        engine.submit(greedy(f"probe-{num_requests}-{index}", prompt, PROBE_STEPS + 1))
    take_step(engine)  # All prompts, and the first token of each.
    seconds = []
    while engine.has_work():
        began = time.perf_counter()
        take_step(engine)
        seconds.append(time.perf_counter() - began)
    assert len(seconds) == PROBE_STEPS, "the prompts took more than one step"
    return median(seconds)


def _conditions(bench: Workbench, load: Workload) -> str:
    return (
        f"{load.num_requests} requests at once, --max-num-seqs {load.max_num_seqs}, prompts of"
        f" {load.prompt[0]} to {load.prompt[1]} tokens, outputs lognormal (median"
        f" {load.output_median:g}, sigma {load.output_sigma:g}) cut to {load.output[0]} to"
        f" {load.output[1]}, greedy, no prefix cache, {bench.name}"
        f" ({weights_megabytes(bench.model):.3g} MB of weights); median of {bench.rounds} rounds,"
        " each with its own draw"
    )
