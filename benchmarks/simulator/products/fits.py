"""Fits of products in few bits, experts and latent attention; which rows each is fitted to.

vLLM's products in fp8 blocks were timed outside of a graph: up to 2,048 rows its table holds the
host's 60 to 300 us. TensorRT-LLM's has the kernels (DeepGEMM in both), so those are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from random import Random
from typing import Any

from benchmarks.simulator.data import GemmRow, gemm_rows
from benchmarks.simulator.kernels import (
    DECODE_SPACE,
    PREFILL_SPACE,
    SAMPLE,
    fit_gemm,
    usual,
)
from benchmarks.simulator.kernels import fit as fit_rows
from benchmarks.simulator.products.experts_batch import ExpertsBatch
from benchmarks.simulator.products.rows import (
    ExpertsRow,
    LatentRow,
    experts_rows,
    latent_rows,
    marlin_rows,
)
from benchmarks.simulator.search import Space, search
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.cost.attention_cost import DecodeAttention, DeviceShare, PrefillAttention
from twostroke.simulator.cost.efficiencies import (
    AttentionEfficiency,
    ExpertsEfficiency,
    GemmEfficiency,
)
from twostroke.simulator.cost.gemm import Product
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware

EXPERTS_SPACE: Space = {
    "compute": (0.8, 0.1, 1.1, 0.07),
    "memory": (0.8, 0.2, 1.1, 0.05),
    "half_tile": (3000.0, 10.0, 40000.0, 0.3),
    "prologue": (130.0, 1.0, 4000.0, 0.3),
    "waves": (0.6, 0.0, 1.0, -0.2),
    "launch": (3e-5, 2e-7, 3e-4, 0.2),
    "sharpness": (2.0, 1.0, 20.0, 0.3),
    "moves": (0.3, 0.0, 20.0, -0.5),
}
LATENT_DECODE: Space = {**DECODE_SPACE, "launch": (3e-5, 1e-6, 1e-4, 0.2)}
LATENT_PREFILL: Space = {**PREFILL_SPACE, "launch": (3e-5, 1e-6, 1e-4, 0.2)}
# Formats of products on each device, and the stack whose kernels are fitted.
DENSE = {
    ("h100-sxm", "vllm"): {"fp8": "vllm", "fp8_block": "trtllm"},
    ("h100-sxm", "trtllm"): {"fp8": "trtllm"},
    ("b200", "vllm"): {"fp8": "vllm", "fp8_block": "trtllm", "nvfp4": "vllm"},
    ("b200", "trtllm"): {"fp8": "trtllm", "nvfp4": "trtllm"},
}
EXPERTS = {
    ("h100-sxm", "vllm"): ("bf16", "fp8_block", "int4", "mxfp4"),
    ("h100-sxm", "trtllm"): ("bf16", "fp8", "fp8_block", "mxfp4"),
    ("b200", "vllm"): ("bf16", "fp8", "fp8_block", "int4", "mxfp4", "nvfp4"),
    ("b200", "trtllm"): ("bf16", "fp8", "fp8_block", "mxfp4", "nvfp4"),
}
# vLLM's experts with one scale for all weights in fp8 are three times as slow in the table as those
# with blocks, and as TensorRT-LLM's: a kernel without tuned sizes. They ship with those of blocks.
UNTUNED = {("h100-sxm", "vllm"): {"fp8": "fp8_block"}}
LATENT_DEVICES = ("h100-sxm", "b200")
# Where gpt-oss's measured servers ran vLLM's Marlin (InferenceX's scripts for Hopper set
# VLLM_MXFP4_USE_MARLIN=1). It decodes faster than the Triton kernels of the table, and prefills at
# half their rate.
MARLIN_DEVICE = "h100-sxm"


def dense_rows(device: str, stack: str, format_: str) -> list[tuple[GemmRow, HardwareSheet]]:
    """Products of usual shapes, to be fitted."""
    hardware = load_hardware(device)
    return [
        (row, hardware) for row in gemm_rows(device, stack) if row.format == format_ and usual(row)
    ]


def experts_pairs(
    devices: Sequence[str], stack: str, format_: str
) -> list[tuple[ExpertsRow, HardwareSheet]]:
    """Rows of experts, each with its device."""
    return [
        (row, load_hardware(device))
        for device in devices
        for row in experts_rows(device, stack, format_)
    ]


def marlin_table(triton: Mapping[str, float]) -> dict[str, Any]:
    """Experts in mxfp4 under vLLM on Hopper, fitted to the one shape that Marlin was measured at.

    Args:
        triton: Coefficients of the Triton kernels, which were measured at gpt-oss's own shapes.
    """
    hardware = load_hardware(MARLIN_DEVICE)
    values = asdict(fit_experts([(row, hardware) for row in marlin_rows(MARLIN_DEVICE)]))
    # Its table has 896 experts, which take longer to sort tokens by than gpt-oss's 128.
    values["launch"] = min(values["launch"], triton["launch"])
    return {"experts": {"mxfp4": values}}


def fit_experts(rows: Sequence[tuple[ExpertsRow, HardwareSheet]]) -> ExpertsEfficiency:
    """Coefficients for one format, on one device or several; the best of three searches.

    No launch takes longer than the shortest row.
    """
    chosen = Random(0).sample(list(rows), min(3 * SAMPLE, len(rows)))
    batch = ExpertsBatch(chosen)
    shortest = 0.95 * min(row.seconds for row, _ in rows)
    start, low, _, scale = EXPERTS_SPACE["launch"]
    space = {**EXPERTS_SPACE, "launch": (min(start, shortest), low, shortest, scale)}
    found = [search(batch.loss, space, 800, seed) for seed in range(3)]
    return ExpertsEfficiency(**min(found, key=batch.loss))


class Latent:
    """Time of a layer's latent attention with its projections, in parts of the cost model."""

    def __init__(self, device: str, gemm: Mapping[str, GemmEfficiency]) -> None:
        self.hardware = load_hardware(device)
        self._gemm = gemm
        model: ModelSpec = find_model("deepseek-v3")
        self.layer = next(layer.attention for layer in model.layers if layer.attention)
        self._products: dict[tuple[str, int], list[Product]] = {}
        self._sums: dict[tuple[str, int, int], float] = {}

    def seconds(self, row: LatentRow, e: AttentionEfficiency, operation: str) -> float:
        """Time of a row under these coefficients; ``operation`` as in ``latent_rows``."""
        ranks = self.layer.heads // row.heads
        hardware = self.hardware
        share = DeviceShare(
            flops=hardware.dense_flops["bf16"],
            bandwidth=hardware.memory_bandwidth,
            units=hardware.compute_units,
            ranks=ranks,
            cache_bytes=1.0 if row.cache == "fp8" else 2.0,
        )
        if operation == "generation":
            attention = DecodeAttention(self.layer, e, share)
            time = attention.time(row.batch, row.batch * (row.tokens + 1)).seconds
            return time + self._projections(row, ranks, row.batch)
        prefill = PrefillAttention(self.layer, e, share)
        time = prefill.time(((row.tokens, 0),) * row.batch).seconds
        return time + self._projections(row, ranks, row.batch * row.tokens)

    def _projections(self, row: LatentRow, ranks: int, rows: int) -> float:
        key = (row.weights, ranks, rows)
        if key not in self._sums:
            made = self._products.get(key[:2]) or self._make(row.weights, ranks)
            self._products[key[:2]] = made
            self._sums[key] = sum(product.time(rows).seconds for product in made)
        return self._sums[key]

    def _make(self, weights: str, ranks: int) -> list[Product]:
        compute = {"bf16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4"}[weights]
        return [
            Product(
                *linear.on_rank(ranks),
                efficiency=self._gemm[weights],
                flops=self.hardware.dense_flops[compute],
                bandwidth=self.hardware.memory_bandwidth,
                units=self.hardware.compute_units,
                weight_bytes={"bf16": 2.0, "fp8_block": 1.0, "nvfp4": 0.5625}[weights],
            )
            for linear in self.layer.linears
        ]


def fit_latent(latent: Latent, rows: Sequence[LatentRow], operation: str) -> AttentionEfficiency:
    """Coefficients of latent attention beside its projections."""
    decode = operation == "generation"
    fixed = {"tile": 0.0} if decode else {}

    def seconds(row: LatentRow, _: HardwareSheet, values: dict[str, float]) -> float:
        return latent.seconds(row, AttentionEfficiency(**values, **fixed), operation)

    pairs = [(row, latent.hardware) for row in rows if decode or row.batch <= 32]
    space = LATENT_DECODE if decode else LATENT_PREFILL
    return AttentionEfficiency(**fit_rows(pairs, seconds, space, sample=SAMPLE // 2), **fixed)


def tables(device: str, stack: str, gemm: Mapping[str, Any]) -> dict[str, Any]:
    """What a stack's kernels on a device are fitted to, as it stands in a file.

    Args:
        gemm: The tables of products that are there already, by format.
    """
    dense = {
        format_: asdict(fit_gemm(dense_rows(device, whose, format_)))
        for format_, whose in DENSE[device, stack].items()
    }
    for name, values in dense.items():
        if name != "fp8_block":
            # What starts the quantisation is fused in servers; the rest of it is theirs too.
            values["launch"] = gemm["bf16"]["launch"]
    experts = {
        format_: asdict(fit_experts(experts_pairs([device], stack, format_)))
        for format_ in EXPERTS[device, stack]
    }
    for name, other in UNTUNED.get((device, stack), {}).items():
        experts[name] = experts[other]
    made: dict[str, Any] = {"gemm": {**gemm, **dense}, "experts": experts}
    if stack == "vllm":
        latent = Latent(device, {n: GemmEfficiency(**v) for n, v in made["gemm"].items()})
        for operation, name in (("generation", "latent_decode"), ("context", "latent_prefill")):
            made[name] = asdict(fit_latent(latent, latent_rows(device, operation), operation))
    return made


def shared_tables(devices: Sequence[str], gemm: Mapping[str, Any]) -> dict[str, Any]:
    """What these devices have in common under vLLM, for those that were not measured."""
    made: dict[str, Any] = {"gemm": dict(gemm), "experts": {}}
    for format_ in ("fp8_block", "nvfp4"):
        pairs = [
            pair
            for device in devices
            if (whose := DENSE[device, "vllm"].get(format_))
            for pair in dense_rows(device, whose, format_)
        ]
        if pairs:
            made["gemm"][format_] = asdict(fit_gemm(pairs))
    for format_ in ("bf16", "fp8_block", "int4", "mxfp4", "nvfp4"):
        within = [device for device in devices if format_ in EXPERTS[device, "vllm"]]
        if within:
            pairs_ = experts_pairs(within, "vllm", format_)
            made["experts"][format_] = asdict(fit_experts(pairs_))
    made["experts"]["fp8"] = made["experts"]["fp8_block"]
    return made
