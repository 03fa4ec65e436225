"""Steps of several models with random weights: decode, prompts, both mixed, with drafts.

    python -m benchmarks.gpu.models [--models "8B fp8" ...]

In milliseconds, those that ``benchmarks.gpu.predict`` wrote down before, and others. A model that
fails ends no other.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.environment import Record
from benchmarks.gpu.random_model import BLOCK_SIZE, MODELS, random_executor
from benchmarks.gpu.speed import PROMPT, engine_over, run, submit, timed_step
from twostroke.runtime.hooks.drafts import DraftsAcceptedAtARate, ProposedDrafts
from twostroke.runtime.passes.decode_graphs import CudaCapture, graph_sizes
from twostroke.runtime.passes.record import record_graphs
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.spec_decode.synthetic import SyntheticAcceptance, SyntheticProposer

BUDGET = 8192  # tokens of a step, as on a GPU by default
BATCHES, LENGTHS, OUTPUT = (1, 8, 64, 256), (512, 2048, 8192, 32768), 48
# Requests that write while prompts come: how many, of how many tokens, each after so many steps.
WRITERS, COMING, LONG, APART = 64, 8, 2048, 6
DRAFTS, RATE = 4, 0.7  # of a request in a step; how likely one is accepted after those before
Steps = Iterator[tuple[str, float]]


def steps_of(
    executor: TorchExecutor, batches: tuple[int, ...], lengths: tuple[int, ...], output: int
) -> Steps:
    """What each kind of step takes, in seconds; the first of a kind is not counted."""
    for batch in batches:
        engine = engine_over(executor, BUDGET)
        run(engine, batch, PROMPT, 4, f"warm-{batch}")
        times = run(engine, batch, PROMPT, output, f"timed-{batch}")
        yield f"decode {batch}", statistics.median(own for tokens, own in times if tokens == batch)
    for length in lengths:
        engine = engine_over(executor, length)
        run(engine, 1, length, 2, f"warm-{length}")
        taken = (run(engine, 1, length, 2, f"p{i}-{length}")[0][1] for i in range(3))
        yield f"prefill {length}", min(taken)


def mixed_steps(executor: TorchExecutor, writers: int, prompt: int) -> Steps:
    """Steps of requests that write, alone and with a prompt; and seconds a token of all of them."""
    engine, steps, tokens = engine_over(executor, prompt + writers), list[tuple[int, float]](), 0
    submit(engine, writers, PROMPT, 2 * APART * (COMING + 2), "writer")
    while timed_step(engine)[0] != writers:
        pass
    for number in range(APART * COMING):
        if number % APART == 0:
            submit(engine, 1, prompt, 2, f"prompt-{number}")
        steps.append(timed_step(engine))
        tokens += steps[-1][0]
    for request_id in list(engine.scheduler.requests):
        engine.abort(request_id)
    alone = [seconds for count, seconds in steps if count <= writers + 1]
    mixed = [seconds for count, seconds in steps if count > writers + 1]
    yield f"mixed, {writers} alone", statistics.median(alone)
    yield f"mixed, with {prompt}", statistics.median(mixed)
    yield "mixed, a token", sum(seconds for _, seconds in steps) / tokens


def drafted_steps(executor: TorchExecutor, batches: tuple[int, ...], output: int) -> Steps:
    """Seconds a token of each request, where drafts are accepted at a rate."""
    if executor.kv.recurrent.exist:
        return  # each draft would need a state
    acceptance = DraftsAcceptedAtARate(SyntheticAcceptance(RATE))
    executor.hooks[:] = [ProposedDrafts(SyntheticProposer()), acceptance]
    method = {"method": "synthetic", "num_speculative_tokens": DRAFTS, "adaptive": False}
    for batch in batches:
        engine = engine_over(executor, BUDGET, speculative_config=json.dumps(method))
        run(engine, batch, PROMPT, 4, f"warm-d{batch}")
        submit(engine, batch, PROMPT, output, f"drafted-{batch}")
        while min(own.num_output_tokens for own in engine.scheduler.requests.values()) < 1:
            timed_step(engine)
        known = sum(own.num_output_tokens for own in engine.scheduler.requests.values())
        seconds = sum(timed_step(engine)[1] for _ in range(output // (DRAFTS + 2)))
        made = sum(own.num_output_tokens for own in engine.scheduler.requests.values()) - known
        for request_id in list(engine.scheduler.requests):
            engine.abort(request_id)
        while engine.has_work():
            engine.step()
        yield f"decode {batch}, {DRAFTS} drafts, a token", seconds * batch / made


def measure(name: str, device: torch.device, record: Record) -> None:
    model = MODELS[name]
    longest = max(LENGTHS) + 64
    blocks = max(max(BATCHES) * (PROMPT + OUTPUT + 16), longest) // BLOCK_SIZE + 2048
    executor = random_executor(
        model.config,
        device,
        max_model_len=longest,
        num_blocks=blocks,
        quantization=model.quantization,
    )
    try:
        record_graphs(executor, graph_sizes(max(BATCHES)), CudaCapture())
        executor.info = replace(executor.info, runs_ahead=True)
        kinds = steps_of(executor, BATCHES, LENGTHS, OUTPUT), mixed_steps(executor, WRITERS, LONG)
        for steps in (*kinds, drafted_steps(executor, BATCHES, OUTPUT)):
            for step, seconds in steps:
                record.add({"model": name, "step": step, "ms": 1e3 * seconds})
    finally:
        executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    record = Record(args.results, "models", args.device)
    failed: list[dict[str, Any]] = []
    for name in args.models:
        try:
            measure(name, torch.device(args.device, 0), record)
        except Exception:
            failed.append({"model": name, "failed": traceback.format_exc()[-1500:]})
            record.add(failed[-1])
        gc.collect()  # what a traceback held
        torch.cuda.empty_cache()
    if failed:
        raise SystemExit("some models failed")


if __name__ == "__main__":
    main()
