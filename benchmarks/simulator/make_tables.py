"""Kernel tables from measured rows, as ``simulator.cost.kernel_tables`` reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.simulator.data import AllReduceRow, AttentionRow, GemmRow
from twostroke.simulator.cost.kernel_tables import ELEMENT_BYTES


def gemm_entries(rows: Sequence[GemmRow]) -> dict[str, list[Any]]:
    points_by_shape: dict[str, dict[tuple[int, int], list[tuple[int, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row.format not in ELEMENT_BYTES:
            continue  # a format that tables do not know
        points_by_shape[row.format][row.outputs, row.inputs].append((row.rows, row.seconds))
    return {
        format_: [[outputs, inputs, sorted(points)] for (outputs, inputs), points in shapes.items()]
        for format_, shapes in points_by_shape.items()
    }


def attention_entries(rows: Sequence[AttentionRow]) -> list[Any]:
    points_by_shape: dict[tuple[int, int, int, int], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        points_by_shape[row.heads, row.kv_heads, row.dim, row.batch].append(
            (row.tokens, row.seconds)
        )
    return [[*shape, sorted(points)] for shape, points in points_by_shape.items()]


def all_reduce_entries(rows: Sequence[AllReduceRow]) -> dict[str, list[tuple[int, float]]]:
    points_by_ranks: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        points_by_ranks[str(row.ranks)].append((row.size, row.seconds))
    return {ranks: sorted(points) for ranks, points in points_by_ranks.items()}
