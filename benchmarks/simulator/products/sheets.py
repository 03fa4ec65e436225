"""Judges a device by its data sheet alone: all that estimates it was fitted to other devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.simulator import kernels
from benchmarks.simulator.data import all_reduce_rows
from benchmarks.simulator.fit import attention, fit_links, products
from benchmarks.simulator.kernels import Pair, Result, fit_gemm, gemm_seconds
from benchmarks.simulator.products.fits import dense_rows, experts_pairs, fit_experts
from benchmarks.simulator.products.judged import REGIMES, TOKENS, by_limit, experts_judged
from benchmarks.simulator.products.rows import experts_rows
from twostroke.simulator.cost.efficiencies import AllReduceEfficiency
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware

# Devices that are tried, and those that their coefficients come from.
OTHERS = {
    "b200": ("a100-80gb-sxm", "h100-sxm", "l40s"),
    "h100-sxm": ("a100-80gb-sxm", "l40s", "b200"),
}
SWITCHED = ("a100-80gb-sxm", "h100-sxm", "b200")
TARGET = 0.15
EVERY = 9


def sheets_alone() -> Iterator[Result]:
    """All kinds of kernels of H100 and of B200, as far as other devices have them."""
    for device, others in OTHERS.items():
        yield from _dense(device, others)
        yield from _experts(device, next(x for x in others if x in ("h100-sxm", "b200")))
        for operation, name in (("generation", "decode"), ("context", "prefill")):
            yield _attention(device, others, operation, name)
        yield _all_reduce(device, [other for other in others if other in SWITCHED])


def _split(device: str, others: Sequence[str]) -> str:
    titles = ", ".join(load_hardware(other).name for other in others)
    return f"nothing of {device} seen; coefficients of {titles}"


def _dense(device: str, others: Sequence[str]) -> Iterator[Result]:
    hardware = load_hardware(device)
    for format_ in ("bf16", "fp8", "fp8_block"):
        # TensorRT-LLM's products in blocks: vLLM's were timed with the host's share.
        if format_ == "fp8_block":
            chosen = [other for other in others if other in ("h100-sxm", "b200")]
            seen = [pair for other in chosen for pair in dense_rows(other, "trtllm", format_)]
            rows = [row for row, _ in dense_rows(device, "trtllm", format_)]
        else:
            chosen = [other for other in others if products([other], format_)]
            seen = products(chosen, format_)
            rows = [row for row, _ in products([device], format_)]
        efficiency = fit_gemm(seen)
        tested = rows[::EVERY]
        pairs = [Pair(row.seconds, gemm_seconds(row, hardware, efficiency)) for row in tested]
        parts = by_limit([row.rows for row in tested], pairs, REGIMES)
        name = f"{format_}, {device}, unseen"
        yield Result(name, _split(device, chosen), pairs, "mean", TARGET, parts)


def _experts(device: str, other: str) -> Iterator[Result]:
    hardware = load_hardware(device)
    for format_ in ("bf16", "fp8_block"):
        values = asdict(fit_experts(experts_pairs([other], "vllm", format_)))
        tested = experts_rows(device, "vllm", format_)
        pairs = experts_judged(tested, hardware, values)
        parts = by_limit([row.tokens for row in tested], pairs, TOKENS)
        name = f"experts {format_}, {device}, unseen"
        yield Result(name, _split(device, [other]), pairs, "mean", TARGET, parts)


def _attention(device: str, others: Sequence[str], operation: str, name: str) -> Result:
    hardware = load_hardware(device)
    fit = kernels.fit_decode if name == "decode" else kernels.fit_prefill
    seconds = kernels.decode_seconds if name == "decode" else kernels.prefill_seconds
    efficiency = fit(attention(others, operation))
    rows: list[Any] = [row for row, _ in attention([device], operation)]
    pairs = [Pair(row.seconds, seconds(row, hardware, efficiency)) for row in rows]
    limits = (("up to 1,024 tokens", 1024), ("more tokens", 10**9))
    parts = by_limit([row.tokens for row in rows], pairs, limits)
    title = f"{name} attention, {device}, unseen"
    return Result(title, _split(device, others), pairs, "mean", TARGET, parts)


def _all_reduce(device: str, others: Sequence[str]) -> Result:
    hardware: HardwareSheet = load_hardware(device)
    efficiency = AllReduceEfficiency(**fit_links(others)["all_reduce"])
    rows = all_reduce_rows(device)
    pairs = [
        Pair(row.seconds, kernels.all_reduce_seconds(row, hardware, efficiency)) for row in rows
    ]
    parts: dict[str, list[Pair]] = {}
    for row, pair in zip(rows, pairs):
        parts.setdefault(f"{row.ranks} devices", []).append(pair)
    name = f"all-reduce, {device}, unseen"
    return Result(name, _split(device, others), pairs, "mean", TARGET, [*parts.items()])
