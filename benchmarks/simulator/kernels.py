"""The cost model's kernels against measured ones: what to fit and hold out, and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from typing import Any

from benchmarks.simulator.data import AllReduceRow, AttentionRow, GemmRow
from benchmarks.simulator.search import Space, search
from benchmarks.simulator.vector import GemmBatch
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.number_formats import weight_format
from twostroke.simulator.cost.attention_cost import DecodeAttention, DeviceShare, PrefillAttention
from twostroke.simulator.cost.communication import all_reduce_time
from twostroke.simulator.cost.efficiencies import (
    AllReduceEfficiency,
    AttentionEfficiency,
    GemmEfficiency,
)
from twostroke.simulator.cost.gemm import Product
from twostroke.simulator.cost.hardware_sheet import HardwareSheet

# Rows that one try of a fit looks at; enough that another draw gives the same coefficients within a
# few percent.
SAMPLE = 1200
# Models whose products are judged: hidden size, feed-forward size, query heads, KV heads, head
# size.
MODELS = {
    "Llama-3.1-8B": (4096, 14336, 32, 8, 128),
    "Qwen3-32B": (5120, 25600, 64, 8, 128),
    "Llama-3.1-70B": (8192, 28672, 64, 8, 128),
    "Qwen2.5-7B": (3584, 18944, 28, 4, 128),
    "Phi-3-mini": (3072, 8192, 32, 32, 96),
    "Qwen2.5-3B": (2048, 11008, 16, 2, 128),
    "GPT-3-175B": (12288, 49152, 96, 96, 128),
}

GEMM_SPACE: Space = {
    "compute": (0.9, 0.3, 1.1, 0.05),
    "memory": (0.8, 0.3, 1.1, 0.05),
    "half_tile": (3000.0, 100.0, 40000.0, 0.3),
    "prologue": (130.0, 1.0, 2000.0, 0.3),
    "waves": (0.6, 0.0, 1.0, -0.2),
    "split": (3e-6, 1e-7, 5e-5, 0.3),
    "launch": (3e-6, 2e-7, 3e-5, 0.2),
    "sharpness": (4.0, 1.0, 20.0, 0.3),
}
# Of formats with few bits, whose inputs are quantised first.
FEW_BITS_SPACE: Space = {
    **GEMM_SPACE,
    "half_tile": (3000.0, 100.0, 40000.0, 0.3),
    "prologue": (130.0, 1.0, 4000.0, 0.3),
    "quantise": (2.0, 0.0, 8.0, -0.4),
    "quantise_row": (3e-9, 0.0, 5e-8, -3e-9),
}
DECODE_SPACE: Space = {
    "compute": (0.5, 0.05, 1.0, 0.2),
    "memory": (0.85, 0.3, 1.1, 0.05),
    "launch": (8e-6, 1e-6, 3e-5, 0.2),
    "block": (2e-6, 1e-8, 2e-5, 0.3),
    "sharpness": (2.0, 1.0, 20.0, 0.3),
}
PREFILL_SPACE: Space = {**DECODE_SPACE, "tile": (128.0, 16.0, 1024.0, 0.3)}
ALL_REDUCE_SPACE: Space = {
    "launch": (4.4e-6, 1e-6, 3e-5, 0.1),
    "rank": (1e-7, 1e-9, 1e-5, 0.4),
    "one_shot": (0.6, 0.02, 1.0, 0.15),
    "two_shot": (0.6, 0.02, 1.0, 0.15),
    "sync": (3e-6, 1e-7, 3e-5, 0.3),
    "ring": (0.7, 0.02, 1.2, 0.1),
    "ring_launch": (1e-5, 1e-6, 1e-4, 0.3),
    "crowding": (0.0, -1.0, 3.0, -0.2),
    "ring_crowding": (0.0, -1.0, 3.0, -0.2),
}
# From the measurements: where servers switch from their own kernel to the library's.
RING_FROM = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured and an estimated time, in seconds."""

    measured: float
    estimated: float

    @property
    def error(self) -> float:
        return abs(self.estimated / self.measured - 1.0)


def mean(pairs: Sequence[Pair]) -> float:
    return sum(pair.error for pair in pairs) / len(pairs)


def median(pairs: Sequence[Pair]) -> float:
    errors = sorted(pair.error for pair in pairs)
    return errors[len(errors) // 2]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report.

    Attributes:
        statistic: ``mean`` or ``median`` of the absolute relative errors, where there is a target.
        target: At most this; ``None`` is reported only.
    """

    name: str
    split: str
    pairs: list[Pair]
    statistic: str = "median"
    target: float | None = None
    parts: list[tuple[str, list[Pair]]] = field(default_factory=list)

    @property
    def value(self) -> float:
        return mean(self.pairs) if self.statistic == "mean" else median(self.pairs)


def gemm_pair(row: GemmRow, hardware: HardwareSheet, efficiency: GemmEfficiency) -> Pair:
    return Pair(row.seconds, gemm_seconds(row, hardware, efficiency))


def gemm_seconds(row: GemmRow, hardware: HardwareSheet, efficiency: GemmEfficiency) -> float:
    format_ = weight_format(row.format)
    return (
        Product(
            row.outputs,
            row.inputs,
            efficiency=efficiency,
            flops=hardware.dense_flops[format_.compute],
            bandwidth=hardware.memory_bandwidth,
            units=hardware.compute_units,
            weight_bytes=format_.bits / 8,
        )
        .time(row.rows)
        .seconds
    )


def model_shapes(name: str) -> set[tuple[int, int]]:
    """(outputs, inputs) of a model's products on one of 1, 2, 4 or 8 devices."""
    hidden, inner, heads, kv_heads, dim = MODELS[name]
    shapes: set[tuple[int, int]] = set()
    for ranks in (1, 2, 4, 8):
        kv = max(kv_heads // ranks, 1)
        shapes |= {
            ((heads // ranks + 2 * kv) * dim, hidden),
            (hidden, heads // ranks * dim),
            (2 * inner // ranks, hidden),
            (hidden, inner // ranks),
        }
    return shapes


def of_width(row: GemmRow, width: int) -> bool:
    """Whether a product could belong to a model of this hidden size.

    A fit that is tested on such products has seen none of them.
    """
    return width in (row.outputs, row.inputs)


def usual(row: GemmRow) -> bool:
    """Shapes that a served model has; the grids also hold slivers such as 32 outputs."""
    return row.outputs >= 512 and row.inputs >= 512 and row.inputs <= 30000


def cached(bytes_: float, hardware: HardwareSheet) -> bool:
    """Whether a repeated kernel may have found its data in the cache, as no server does."""
    return bytes_ < hardware.cache_bytes


def fit(
    rows: Sequence[tuple[Any, HardwareSheet]],
    estimate: Callable[[Any, HardwareSheet, dict[str, float]], float],
    space: Space,
    rounds: int = 400,
    sample: int = SAMPLE,
) -> dict[str, float]:
    """The least mean ``|log(estimated / measured)|`` over a seeded sample of ``rows``."""
    chosen = Random(0).sample(list(rows), min(sample, len(rows)))

    def loss(values: dict[str, float]) -> float:
        return sum(
            abs(log(estimate(row, hardware, values) / row.seconds)) for row, hardware in chosen
        ) / len(chosen)

    return search(loss, space, rounds)


def fit_gemm(rows: Sequence[tuple[GemmRow, HardwareSheet]], rounds: int = 500) -> GemmEfficiency:
    """Coefficients for products of one number format, on one device or several.

    In few bits, libraries that take the fastest tile and those that look at rows alone are tried.
    """
    chosen = Random(0).sample(list(rows), min(3 * SAMPLE, len(rows)))
    batch = GemmBatch(chosen)
    if chosen[0][0].format == "bf16":
        plain: dict[str, Any] = search(batch.loss, GEMM_SPACE, rounds)
        return GemmEfficiency(**plain)
    tried = []
    for by_rows in (False, True):

        def loss(values: dict[str, float], by_rows: bool = by_rows) -> float:
            return batch.loss({**values, "tile_by_rows": by_rows})

        values: dict[str, Any] = search(loss, FEW_BITS_SPACE, rounds + rounds // 2)
        tried.append((loss(values), GemmEfficiency(**values, tile_by_rows=by_rows)))
    return min(tried, key=lambda each: each[0])[1]


def share_of(hardware: HardwareSheet) -> DeviceShare:
    """All of a layer on one device."""
    return DeviceShare(
        flops=hardware.dense_flops["bf16"],
        bandwidth=hardware.memory_bandwidth,
        units=hardware.compute_units,
    )


def decode_seconds(
    row: AttentionRow, hardware: HardwareSheet, efficiency: AttentionEfficiency
) -> float:
    layer = AttentionSpec(row.heads, row.kv_heads, row.dim, row.dim)
    attention = DecodeAttention(layer, efficiency, share_of(hardware))
    return attention.time(row.batch, row.batch * row.tokens).seconds


def prefill_seconds(
    row: AttentionRow, hardware: HardwareSheet, efficiency: AttentionEfficiency
) -> float:
    layer = AttentionSpec(row.heads, row.kv_heads, row.dim, row.dim)
    attention = PrefillAttention(layer, efficiency, share_of(hardware))
    return attention.time(((row.tokens, 0),) * row.batch).seconds


def fit_decode(rows: Sequence[tuple[AttentionRow, HardwareSheet]]) -> AttentionEfficiency:
    def seconds(row: AttentionRow, hardware: HardwareSheet, values: dict[str, float]) -> float:
        return decode_seconds(row, hardware, AttentionEfficiency(tile=0.0, **values))

    return AttentionEfficiency(tile=0.0, **fit(rows, seconds, DECODE_SPACE))


def fit_prefill(rows: Sequence[tuple[AttentionRow, HardwareSheet]]) -> AttentionEfficiency:
    def seconds(row: AttentionRow, hardware: HardwareSheet, values: dict[str, float]) -> float:
        return prefill_seconds(row, hardware, AttentionEfficiency(**values))

    # More prompts than that share no step.
    few = [(row, hardware) for row, hardware in rows if row.batch <= 32]
    return AttentionEfficiency(**fit(few, seconds, PREFILL_SPACE, sample=SAMPLE // 2))


def all_reduce_seconds(
    row: AllReduceRow, hardware: HardwareSheet, efficiency: AllReduceEfficiency
) -> float:
    return all_reduce_time(row.size, row.ranks, efficiency=efficiency, link=hardware.link_bandwidth)


def fit_all_reduce(rows: Sequence[tuple[AllReduceRow, HardwareSheet]]) -> AllReduceEfficiency:
    def seconds(row: AllReduceRow, hardware: HardwareSheet, values: dict[str, float]) -> float:
        return all_reduce_seconds(row, hardware, AllReduceEfficiency(ring_from=RING_FROM, **values))

    return AllReduceEfficiency(
        ring_from=RING_FROM, **fit(rows, seconds, ALL_REDUCE_SPACE, rounds=3000)
    )
