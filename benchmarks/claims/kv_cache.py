"""A KV cache against none: the time of one more token after a context of 1,024."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, median, milliseconds, spread
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, take_step, time_to_first_token
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A recomputed token is slow enough for ``recomputed`` of them to give a stable mean."""

    context: int = 1024
    cached: int = 64
    recomputed: int = 6


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    load = load or Workload()
    seconds: dict[str, list[float]] = {"cached": [], "naive": [], "engine without cache": []}
    with bench.engines({"engine": {"enable_prefix_caching": False}}) as engines:
        engine = engines["engine"]
        for number in range(bench.rounds):
            bench.say(f"KV cache: round {number + 1} of {bench.rounds}")
            prompt = random_prompt(random.Random(number), engine, load.context)
            seconds["cached"].append(_cached(engine, prompt, load.cached))
            seconds["naive"].append(_naive(engine, prompt, load.recomputed))
            # The same kernels as the cached decode: what remains is the effect of the cache itself.
            whole = [
                time_to_first_token(engine, greedy("whole", prompt, 1))
                for _ in range(load.recomputed)
            ]
            seconds["engine without cache"].append(median(whole))
    ratios = [slow / fast for slow, fast in zip(seconds["naive"], seconds["cached"], strict=True)]
    kernel_ratios = [
        slow / fast
        for slow, fast in zip(seconds["engine without cache"], seconds["cached"], strict=True)
    ]
    return Claim(
        name="kv_cache",
        claim=f"KV cache against none at {load.context:,} tokens, time per token",
        measured=(
            f"{spread(ratios)}: {milliseconds(median(seconds['cached']))} against"
            f" {milliseconds(median(seconds['naive']))}; {spread(kernel_ratios)} against"
            " the engine's own kernels recomputing the context"
            f" ({milliseconds(median(seconds['engine without cache']))})"
        ),
        conditions=(
            f"one request, {load.cached} tokens after a prompt of {load.context:,} against the"
            " naive reference (runtime/reference.py: no cache, logits of all positions), greedy,"
            f" {bench.name}; median of {bench.rounds} rounds"
        ),
        figures={
            "ratio": ratios,
            "ratio_to_own_kernels": kernel_ratios,
            "seconds_per_token": seconds,
        },
    )


def _cached(engine: LLMEngine, prompt: list[int], num_tokens: int) -> float:
    """Median time of a decoding step."""
    engine.submit(greedy("cached", prompt, num_tokens + 1))
    take_step(engine)
    gaps = []
    while engine.has_work():
        began = time.perf_counter()
        take_step(engine)
        gaps.append(time.perf_counter() - began)
    return median(gaps)


def _naive(engine: LLMEngine, prompt: list[int], num_tokens: int) -> float:
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    began = time.perf_counter()
    generate_naive(executor.model, prompt, greedy("naive", prompt, num_tokens).params)
    return (time.perf_counter() - began) / num_tokens
