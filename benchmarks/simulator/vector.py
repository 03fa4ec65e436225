"""``simulator.cost.gemm`` over many shapes at once, since fits ask for millions.

A test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.data import GemmRow
from twostroke.model_spec.number_formats import weight_format
from twostroke.simulator.cost.gemm import PARTIAL_BYTES, SPLITS, TILES, TILES_BY_ROWS
from twostroke.simulator.cost.hardware_sheet import HardwareSheet

Array = NDArray[np.floating[Any]]


class GemmBatch:
    """Products, each on its device, as arrays of ``[products]`` for ``seconds``."""

    def __init__(self, rows: Sequence[tuple[GemmRow, HardwareSheet]]) -> None:
        self.measured = np.array([row.seconds for row, _ in rows])
        self.rows = np.array([row.rows for row, _ in rows], float)
        self.outputs = np.array([row.outputs for row, _ in rows], float)
        self.inputs = np.array([row.inputs for row, _ in rows], float)
        formats = [weight_format(row.format) for row, _ in rows]
        self.flops = np.array(
            [hardware.dense_flops[each.compute] for each, (_, hardware) in zip(formats, rows)]
        )
        self.bandwidth = np.array([hardware.memory_bandwidth for _, hardware in rows])
        self.units = np.array([hardware.compute_units for _, hardware in rows], float)
        weight = np.array([each.bits / 8 for each in formats])
        self.quantised = self.rows * self.inputs * (2.0 + weight) / self.bandwidth
        self.moved = weight * self.outputs * self.inputs + 2.0 * self.rows * (
            self.inputs + self.outputs
        )
        self.tiles = [
            (height * width, self._tiles_of(height, width), np.zeros(len(rows)))
            for height, width in TILES
        ]
        limits = [0.0, *(limit for limit, _ in TILES_BY_ROWS)]
        self.tiles_by_rows = [
            (
                height * width,
                self._tiles_of(height, width),
                np.where((self.rows > low) & (self.rows <= high), 0.0, np.inf),
            )
            for low, (high, (height, width)) in zip(limits, TILES_BY_ROWS)
        ]

    def _tiles_of(self, height: int, width: int) -> Array:
        tiles: Array = np.ceil(self.rows / height) * np.ceil(self.outputs / width) / self.units
        return tiles

    def seconds(self, e: Mapping[str, float]) -> Array:
        """Time of every product under the coefficients of ``GemmEfficiency``."""
        memory = self.moved / (e["memory"] * self.bandwidth)
        rate = 2.0 * self.units / (e["compute"] * self.flops)
        partial = PARTIAL_BYTES * self.rows * self.outputs / (e["memory"] * self.bandwidth)
        compute = np.full_like(memory, np.inf)
        by_rows = e.get("tile_by_rows", False)
        for area, tiles, barred in self.tiles_by_rows if by_rows else self.tiles:
            step = (area + e["half_tile"]) * rate
            for split in (1,) if by_rows else SPLITS:
                waves = e["waves"] * np.ceil(tiles * split) + (1 - e["waves"]) * np.maximum(
                    tiles * split, 1.0
                )
                time = waves * step * (self.inputs / split + e["prologue"])
                if split > 1:
                    time = time + e["split"] + partial * split
                np.minimum(compute, time + barred, out=compute)
        p = e["sharpness"]
        longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
        total: Array = longer * (1.0 + (shorter / longer) ** p) ** (1.0 / p) + e["launch"]
        total += e.get("quantise", 0.0) * self.quantised + e.get("quantise_row", 0.0) * self.rows
        return total

    def loss(self, e: Mapping[str, float]) -> float:
        """Mean of ``|log(estimated / measured)|``."""
        return float(np.mean(np.abs(np.log(self.seconds(e) / self.measured))))
