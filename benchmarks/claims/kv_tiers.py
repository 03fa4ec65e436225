"""What swap does to throughput when the KV cache is half of what is asked for, and what a folder
of KV blocks does to the first token after a restart.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench, median, milliseconds, spread
from twostroke.engine.llm_engine import LLMEngine
from twostroke.lab.live import greedy, random_prompt, run_to_end, time_to_first_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    requests: int = 24
    prompt: int = 150
    output: int = 250
    kv_tokens: int = 4800


def measure_swap(bench: Workbench, load: Overload | None = None) -> Claim:
    load = load or Overload()
    seconds: dict[str, list[float]] = {"swap": [], "recompute": [], "auto": []}
    with bench.engines({"size": {}}) as engines:
        kv_bytes = load.kv_tokens * engines["size"].info.kv_bytes_per_token
    common = {"kv_cache_memory": kv_bytes, "max_model_len": load.kv_tokens // 2}
    variants = {name: {"preemption": name, **common} for name in seconds}
    with bench.engines(variants) as engines:
        for number in range(bench.rounds):
            bench.say(f"swap: round {number + 1} of {bench.rounds}")
            for name, engine in engines.items():
                seconds[name].append(_run(engine, number, load))
    ratios = [a / b for a, b in zip(seconds["recompute"], seconds["swap"], strict=True)]
    return Claim(
        name="swap",
        claim="Swap instead of recomputation, throughput with twice the tokens that the KV holds",
        measured=(
            f"{spread(ratios)}: {milliseconds(median(seconds['swap']))} against "
            f"{milliseconds(median(seconds['recompute']))}, auto"
            f" {milliseconds(median(seconds['auto']))}"
        ),
        conditions=(
            f"{load.requests} requests at once, {load.prompt} tokens in and {load.output} out, KV"
            f" cache of {load.kv_tokens:,} tokens, greedy, {bench.name}; {bench.rounds} rounds"
        ),
        figures={"ratio": ratios, "seconds": seconds},
    )


def _run(engine: LLMEngine, seed: int, load: Overload) -> float:
    rng = random.Random(seed)
    for number in range(load.requests):
        prompt = random_prompt(rng, engine, load.prompt)
        engine.submit(greedy(f"{seed}-{number}", prompt, load.output))
    began = time.perf_counter()
    run_to_end(engine)
    return time.perf_counter() - began


def measure_warm_start(bench: Workbench, tokens: int = 6000) -> Claim:
    warm, cold = list[float](), list[float]()
    for number in range(bench.rounds):
        bench.say(f"warm start: round {number + 1} of {bench.rounds}")
        with tempfile.TemporaryDirectory(prefix="twostroke-claims-") as folder:
            rng = random.Random(number)
            with bench.engines({"before": {"kv_disk": folder}}) as engines:
                prompt = random_prompt(rng, engines["before"], tokens)
                time_to_first_token(engines["before"], greedy("first", prompt, 1))
                run_to_end(engines["before"])
                prompt += random_prompt(rng, engines["before"], 50)
            with bench.engines({"warm": {"kv_disk": folder}, "cold": {}}) as engines:
                warm.append(time_to_first_token(engines["warm"], greedy("again", prompt, 1)))
                cold.append(time_to_first_token(engines["cold"], greedy("again", prompt, 1)))
    ratios = [a / b for a, b in zip(cold, warm, strict=True)]
    return Claim(
        name="warm_start",
        claim=f"--kv-disk, TTFT of a conversation of {tokens:,} tokens after a restart",
        measured=(
            f"{spread(ratios)} sooner: {milliseconds(median(warm))} against "
            f"{milliseconds(median(cold))}"
        ),
        conditions=(
            f"50 new tokens behind it, alone, greedy, {bench.name}; {bench.rounds} rounds, each"
            " with a conversation and a folder of its own"
        ),
        figures={"ratio": ratios, "ttft_warm": warm, "ttft_cold": cold},
    )
