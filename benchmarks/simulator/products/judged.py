"""Judges products in few bits, experts and latent attention on rows that were not fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from benchmarks.simulator.kernels import (
    MODELS,
    Pair,
    Result,
    fit_gemm,
    gemm_pair,
    model_shapes,
)
from benchmarks.simulator.products.experts_batch import ExpertsBatch
from benchmarks.simulator.products.fits import (
    DENSE,
    EXPERTS,
    LATENT_DEVICES,
    Latent,
    dense_rows,
    fit_experts,
    fit_latent,
)
from benchmarks.simulator.products.rows import (
    ExpertsRow,
    experts_rows,
    latent_rows,
    without_every_fourth,
)
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware

STACKS = {"vllm": "vLLM", "trtllm": "TensorRT-LLM"}
TARGETS = {"fp8": 0.08, "fp8_block": 0.08, "nvfp4": 0.10}
REGIMES = (("up to 64 rows", 64), ("65 to 512 rows", 512), ("more rows", 10**9))
TOKENS = (("up to 16 tokens", 16), ("17 to 512 tokens", 512), ("more tokens", 10**9))
EXPERTS_TARGET = 0.10
EVERY_FOURTH = "every fourth shape of a model's products kept out of the fit"
EVERY_FOURTH_EXPERTS = "every fourth shape of experts kept out (of two or three, one)"
EVERY_LENGTH = "every second length kept out"


def judged() -> Iterator[Result]:
    """All lines of the report."""
    for device, stack in DENSE:
        for format_, whose in DENSE[device, stack].items():
            if whose == stack or format_ == "fp8_block":
                yield dense(device, whose, format_)
    for device, stack in EXPERTS:
        for format_ in EXPERTS[device, stack]:
            yield from experts(device, stack, format_)
    for device in LATENT_DEVICES:
        yield from latent(device)


def dense(device: str, stack: str, format_: str) -> Result:
    """Products of a served shape that was not fitted, by number of rows."""
    hardware = load_hardware(device)
    served = sorted({shape for name in MODELS for shape in model_shapes(name)})
    rows = [row for row, _ in dense_rows(device, stack, format_)]
    shapes = [shape for shape in served if shape in {(row.outputs, row.inputs) for row in rows}]
    out = set(shapes[1::4])
    fitted = [row for row in rows if (row.outputs, row.inputs) not in out]
    test = [row for row in rows if (row.outputs, row.inputs) in out]
    efficiency = fit_gemm([(row, hardware) for row in fitted])
    pairs = [gemm_pair(row, hardware, efficiency) for row in test]
    name = f"{format_}, {device}, {STACKS[stack]}"
    parts = by_limit([row.rows for row in test], pairs, REGIMES)
    return Result(name, EVERY_FOURTH, pairs, "mean", TARGETS.get(format_), parts)


def by_limit(
    sizes: Sequence[int], pairs: Sequence[Pair], limits: Sequence[tuple[str, int]]
) -> list[tuple[str, list[Pair]]]:
    """Pairs by the first limit that their size keeps."""
    parts: dict[str, list[Pair]] = {name: [] for name, _ in limits}
    for size, pair in zip(sizes, pairs):
        parts[next(name for name, limit in limits if size <= limit)].append(pair)
    return [(name, members) for name, members in parts.items() if members]


def experts(device: str, stack: str, format_: str) -> Iterator[Result]:
    """Experts of a shape that was not fitted; nothing where there is one shape only."""
    hardware = load_hardware(device)
    fitted, test = without_every_fourth(experts_rows(device, stack, format_))
    if not fitted or not test:
        return
    efficiency = fit_experts([(row, hardware) for row in fitted])
    pairs = experts_judged(test, hardware, asdict(efficiency))
    parts = by_limit([row.tokens for row in test], pairs, TOKENS)
    layouts = {"one device": (1, 1), "tensor parallel": (2, 1), "expert parallel": (1, 2)}
    for name, (tensor, expert) in layouts.items():
        chosen = [
            pair
            for row, pair in zip(test, pairs)
            if (min(row.tensor, 2), min(row.expert, 2)) == (tensor, expert)
        ]
        if chosen:
            parts.append((name, chosen))
    for name, skewed in (("equal loads", False), ("power law", True)):
        parts.append((name, [p for row, p in zip(test, pairs) if (row.skew > 0) is skewed]))
    name = f"experts {format_}, {device}, {STACKS[stack]}"
    yield Result(name, EVERY_FOURTH_EXPERTS, pairs, "mean", EXPERTS_TARGET, parts)


def experts_judged(
    rows: Sequence[ExpertsRow], hardware: HardwareSheet, values: dict[str, float]
) -> list[Pair]:
    """Measured and estimated times."""
    estimated = ExpertsBatch([(row, hardware) for row in rows]).seconds(values)
    return [Pair(row.seconds, float(seconds)) for row, seconds in zip(rows, estimated)]


def latent(device: str) -> Iterator[Result]:
    """Latent attention with its projections, which have coefficients of their own."""
    gemm = {"bf16": fit_gemm(dense_rows(device, "vllm", "bf16"))}
    for format_, whose in DENSE[device, "vllm"].items():
        gemm[format_] = fit_gemm(dense_rows(device, whose, format_))
    model = Latent(device, gemm)
    for operation, name in (("generation", "decode"), ("context", "prefill")):
        rows = latent_rows(device, operation)
        out = sorted({row.tokens for row in rows})[1:-1:2]
        fitted = [row for row in rows if row.tokens not in out]
        test = [row for row in rows if row.tokens in out]
        efficiency = fit_latent(model, fitted, operation)
        pairs = [Pair(row.seconds, model.seconds(row, efficiency, operation)) for row in test]
        parts: dict[str, list[Pair]] = {}
        for row, pair in zip(test, pairs):
            parts.setdefault(f"{row.heads} heads, {row.weights}", []).append(pair)
        yield Result(
            f"latent {name}, {device}", EVERY_LENGTH, pairs, "mean", None, [*parts.items()]
        )
