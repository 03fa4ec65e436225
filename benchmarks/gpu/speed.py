"""Decode and prefill of an 8B model against the roofline, and against transformers.

    python -m benchmarks.gpu.speed --device cuda

A decode step must at least read weights and KV once: its time times the bandwidth over those bytes
says how far away we are (1.0 is the roofline; the same for prefill, with the products' FLOPs over
the peak rate). Bandwidth and peak are measured first, by a copy and a large product.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.environment import Record
from benchmarks.gpu.random_model import BLOCK_SIZE, CONFIGS, random_executor
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import raise_output_error
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.gpu.load import load_operators
from twostroke.runtime.passes.decode_graphs import CudaCapture, graph_sizes
from twostroke.runtime.passes.record import record_graphs
from twostroke.runtime.torch_executor import TorchExecutor

PROMPT = 256
Row = dict[str, Any]


def seconds_of(run: Callable[[], object], times: int = 20) -> float:
    """Median time of a run on the GPU, by events."""
    event: Any = torch.cuda.Event
    for _ in range(3):
        run()
    measured = []
    for _ in range(times):
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        measured.append(begin.elapsed_time(end) / 1e3)
    return float(statistics.median(measured))


def ceilings(device: torch.device) -> tuple[float, float]:
    """Bytes/s of a large copy, read and written, and bf16 FLOP/s of a large product."""
    source = torch.randn(2**30, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * source.nbytes / seconds_of(lambda: target.copy_(source))

    size = 8192
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    peak = 2 * size**3 / seconds_of(lambda: a @ b)
    return bandwidth, peak


def engine_over(executor: TorchExecutor, budget: int, **more: Any) -> LLMEngine:
    options = {"model": "random", "max_num_batched_tokens": budget, "max_num_seqs": 256, **more}
    config = EngineConfig.from_flat({**options, "enable_prefix_caching": False})
    return LLMEngine(executor, config=config)


def run(
    engine: LLMEngine, batch: int, prompt: int, output: int, name: str
) -> list[tuple[int, float]]:
    """(tokens, seconds) of each step."""
    submit(engine, batch, prompt, output, name)
    times = []
    while engine.has_work():
        times.append(timed_step(engine))
    return times


def submit(engine: LLMEngine, batch: int, prompt: int, output: int, name: str) -> None:
    vocab = engine.executor.info.vocab_size
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    for number in range(batch):
        ids = [(number * 31 + i * 17) % (vocab - 10) + 5 for i in range(prompt)]
        request = GenerationRequest(
            request_id=f"{name}-{number}", prompt_token_ids=ids, params=params
        )
        engine.submit(request)


def timed_step(engine: LLMEngine) -> tuple[int, float]:
    """Tokens of the next step that ends, and seconds since the one before ended, or it began."""
    ended = [event.step for event in engine.recorder.events()[-1:]]
    while True:  # the first call may only launch it, to run ahead of what comes
        for output in engine.step():
            raise_output_error(output)
        event = engine.recorder.events()[-1:]
        if [each.step for each in event] != ended:
            return event[0].num_tokens, event[0].duration


def likeliest(executor: TorchExecutor, rows: int) -> object:
    """What draws the likeliest tokens: logits and their maxima."""
    spec = executor.model.spec
    hidden = torch.zeros(rows, spec.hidden_size, dtype=torch.bfloat16, device=executor.model.device)
    return executor.model.logits(hidden).max(dim=-1)


def decode_rows(
    executor: TorchExecutor, batches: list[int], bandwidth: float, output: int
) -> list[Row]:
    """Steps that decode, of the engine and of the recorded pass alone."""
    rows = []
    info, graphs = executor.info, executor.passes.graphs
    for batch in batches:
        engine = engine_over(executor, PROMPT * batch)
        run(engine, batch, PROMPT, 4, f"warm-{batch}")
        times = run(engine, batch, PROMPT, output, f"timed-{batch}")
        step = statistics.median(seconds for tokens, seconds in times if tokens == batch)
        cached = batch * (PROMPT + output / 2) * info.kv_bytes_per_token
        floor = (info.weight_bytes + cached) / bandwidth
        row: Row = {"batch": batch, "step_ms": 1e3 * step, "step_over_floor": step / floor}
        draw = seconds_of(partial(likeliest, executor, batch))
        row["draw_ms"] = 1e3 * draw
        if graphs is not None:
            # The tables are those of the last step: the contexts are the longest.
            cached = batch * (PROMPT + output) * info.kv_bytes_per_token
            floor = (
                info.weight_bytes
                - executor.model.spec.vocab_size * executor.model.spec.hidden_size * 2
                + cached
            ) / bandwidth
            taken = seconds_of(partial(graphs.replay, batch))
            row |= {"pass_ms": 1e3 * taken, "pass_over_floor": taken / floor}
            row["host_share"] = max(0.0, 1 - (taken + draw) / step)
        rows.append(row)
        print({key: round(value, 3) for key, value in row.items()})
    return rows


def prefill_rows(executor: TorchExecutor, lengths: list[int], peak: float) -> list[Row]:
    spec = executor.model.spec
    attention = spec.layers[0].attention
    assert attention is not None
    per_token = 2 * (spec.num_parameters - 2 * spec.vocab_size * spec.hidden_size)
    rows = []
    for length in lengths:
        engine = engine_over(executor, length)
        run(engine, 1, length, 2, f"warm-{length}")
        taken = min(run(engine, 1, length, 2, f"p{i}-{length}")[0][1] for i in range(3))
        scores = 2 * length**2 * attention.heads * attention.key_dim * spec.num_layers
        row = {"tokens": length, "ms": 1e3 * taken, "tokens_per_second": length / taken}
        row["share_of_peak"] = (per_token * length + scores) / taken / peak
        rows.append(row)
        print({key: round(value, 3) for key, value in row.items()})
    return rows


def time_by_kernel(run: Callable[[], object], times: int = 3) -> list[Row]:
    """Where the GPU spends its time, by kernel, of each run."""
    run()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda each: -each.device_time_total)[:14]
    rows: list[Row] = []
    for each in kernels:
        row: Row = {"kernel": each.key[:70], "calls": each.count // times}
        row["us_each"] = each.device_time_total / max(each.count, 1)
        row["ms"] = each.device_time_total / times / 1e3
        rows.append(row)
        print(f"{row['ms']:8.3f} ms {row['calls']:4} x {row['us_each']:8.1f} us  {row['kernel']}")
    return rows


def variants(executor: TorchExecutor, batches: list[int]) -> list[Row]:
    """The recorded pass with kernels that overlap, and with kernels that do not."""
    operators = load_operators(executor.model.device)
    assert operators is not None
    usual = operators.overlaps, operators.products_overlap
    rows = []
    for small, products in ((False, False), (True, False), (True, True)):
        operators.overlaps, operators.products_overlap = small, products
        record_graphs(executor, graph_sizes(max(batches)), CudaCapture())
        graphs = executor.passes.graphs
        assert graphs is not None
        row: Row = {"small_overlap": small, "products_overlap": products}
        for batch in batches:
            run(engine_over(executor, PROMPT * batch), batch, PROMPT, 4, f"v{small}{products}")
            row[f"pass_ms_{batch}"] = 1e3 * seconds_of(partial(graphs.replay, batch))
        rows.append(row)
        print(row)
    operators.overlaps, operators.products_overlap = usual
    return rows


def transformers_rows(name: str, device: torch.device, batches: list[int]) -> list[Row]:
    """The same sizes through ``generate``: milliseconds per step after the first."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = {key: value for key, value in CONFIGS[name].items() if key != "model_type"}
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**config), dtype=torch.bfloat16)
    rows = []
    for batch in batches:
        ids = torch.randint(5, 4000, (batch, PROMPT), device=device)

        def seconds(new: int, ids: torch.Tensor = ids) -> float:
            torch.cuda.synchronize()
            began = time.perf_counter()
            options = {"max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
            model.generate(ids, do_sample=False, **options)
            torch.cuda.synchronize()
            return time.perf_counter() - began

        seconds(2)
        first = seconds(2)
        rows.append({"batch": batch, "step_ms": 1e3 * (seconds(34) - first) / 32})
        print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="8b", choices=sorted(CONFIGS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16, 64, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--short", action="store_true", help="no eager passes, no transformers")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/gpu/results"))
    args = parser.parse_args()
    device = torch.device(args.device, 0)
    bandwidth, peak = ceilings(device)
    print(f"bandwidth {bandwidth / 1e12:.2f} TB/s, peak {peak / 1e12:.0f} TFLOP/s")
    result: Row = {"bandwidth": bandwidth, "peak": peak, "size": args.size}
    longest = max(args.lengths) + 64
    blocks = max(max(args.batches) * (PROMPT + args.output + 16), longest) // BLOCK_SIZE + 300
    executor = random_executor(CONFIGS[args.size], device, max_model_len=longest, num_blocks=blocks)
    try:
        if not args.short:
            result["decode_eager"] = decode_rows(executor, args.batches[:3], bandwidth, 12)
        if args.short:
            result["variants"] = variants(executor, args.batches)
        began = time.perf_counter()
        record_graphs(executor, graph_sizes(max(args.batches)), CudaCapture())
        result["record_graphs_s"] = time.perf_counter() - began
        print("graphs recorded in", round(result["record_graphs_s"], 2), "s")
        print("each pass waits for the host")
        result["decode_waiting"] = decode_rows(executor, args.batches, bandwidth, args.output)
        print("steps run ahead")
        executor.info = replace(executor.info, runs_ahead=True)
        result["decode"] = decode_rows(executor, args.batches, bandwidth, args.output)
        graphs = executor.passes.graphs
        assert graphs is not None
        for batch in args.batches:
            print(f"kernels of a pass over {batch}")
            result[f"kernels_{batch}"] = time_by_kernel(partial(graphs.replay, batch))
        result["prefill"] = prefill_rows(executor, args.lengths, peak)
        print(f"kernels of a prompt of {args.lengths[-1]}")
        engine = engine_over(executor, args.lengths[-1])
        result["kernels_prefill"] = time_by_kernel(
            lambda: run(engine, 1, args.lengths[-1], 1, f"{time.perf_counter()}"), times=1
        )
        if args.short:
            return
        executor.close()
        del executor
        torch.cuda.empty_cache()
        result["transformers"] = transformers_rows(args.size, device, args.batches[:3])
    finally:
        Record(args.results, "speed", args.device).add(result)


if __name__ == "__main__":
    main()
