"""Time of a matrix product on a device that computes output tiles on many units at once.

A product of ``rows`` by ``outputs`` is cut into tiles, and the compute units take them in waves.
Libraries choose the tile that suits a shape, and split long inner dimensions when there are few
tiles. This model tries all tiles and splits and keeps the fastest. That explains three things that
a plain roofline does not: steps at multiples of a tile, poor use of a large device by small
products, and the plateau between few rows and many.
"""

from __future__ import annotations

from math import ceil, inf

from twostroke.simulator.cost.efficiencies import GemmEfficiency
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, combine

# Rows and outputs of the tiles that common libraries have for half-precision products.
TILES = (
    (16, 64),
    (16, 128),
    (32, 64),
    (32, 128),
    (64, 64),
    (64, 128),
    (64, 256),
    (128, 64),
    (128, 128),
    (128, 256),
    (256, 128),
)
# What a library takes that looks at rows alone: rows up to which, and the tile (vLLM's products in
# fp8 on H100, csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh).
TILES_BY_ROWS = ((64, (64, 64)), (128, (64, 128)), (inf, (128, 128)))
# Divides the rows of every tile: results are kept by rows rounded up to it.
ROW_UNIT = 16
# Largest first: for many rows they win, and their time rules out most of the rest.
LARGEST_FIRST = tuple(reversed(TILES))
SPLITS = (1, 2, 4, 8)
# A split product writes and reads float32 partial sums; most of that stays in the cache.
PARTIAL_BYTES = 8 * 0.3


class Product:
    """``[rows, inputs] x [inputs, outputs]`` on one device, the weights read from memory once.

    Args:
        flops: The device's dense peak, FLOP/s.
        bandwidth: Bytes/s of the device's memory.
        units: The device's compute units.
        weight_bytes: Bytes of one weight.
    """

    def __init__(
        self,
        outputs: float,
        inputs: int,
        *,
        efficiency: GemmEfficiency,
        flops: float,
        bandwidth: float,
        units: int,
        weight_bytes: float,
    ) -> None:
        e = self._efficiency = efficiency
        self._outputs = outputs
        self._inputs = inputs
        self._units = units
        self._flops = e.compute * flops
        self._bandwidth = e.memory * bandwidth
        self._weights = weight_bytes * outputs * inputs
        # By rows / ROW_UNIT: the shortest compute time without a split, and with each split that
        # may be shorter.
        self._searched: dict[int, tuple[float, list[tuple[int, float]]]] = {}
        self._splits = (1,) if e.tile_by_rows else SPLITS
        # (rows of a tile, tiles side by side, seconds per step along the inner dimension)
        self._tiles = [
            (rows, ceil(outputs / width), 2.0 * (rows * width + e.half_tile) * units / self._flops)
            for rows, width in (LARGEST_FIRST if e.half_tile else ())
        ]
        self._by_rows = [
            (
                limit,
                tile,
                ceil(outputs / width),
                2.0 * (tile * width + e.half_tile) * units / self._flops,
            )
            for limit, (tile, width) in (TILES_BY_ROWS if e.tile_by_rows else ())
        ]
        # Seconds that a row's inputs take to be quantised.
        moved = inputs * (ACTIVATION_BYTES + weight_bytes)
        self._row = e.quantise * moved / bandwidth + e.quantise_row

    def time(self, rows: float) -> KernelTime:
        """Time for this many rows."""
        e = self._efficiency
        memory = (
            self._weights + ACTIVATION_BYTES * rows * (self._inputs + self._outputs)
        ) / self._bandwidth
        time = combine(self._compute(rows), memory, e.launch, e.sharpness)
        if not self._row:
            return time
        first = rows * self._row
        return KernelTime(time.seconds + first, time.compute, time.memory + first, time.launch)

    def _compute(self, rows: float) -> float:
        e = self._efficiency
        if not e.half_tile:
            return 2.0 * rows * self._outputs * self._inputs / self._flops
        key = ceil(rows / ROW_UNIT)
        searched = self._searched.get(key)
        if searched is None:
            searched = self._searched[key] = self._search(key * ROW_UNIT)
        best, splits = searched
        for split, time in splits:
            time += e.split + PARTIAL_BYTES * rows * self._outputs * split / self._bandwidth
            best = min(best, time)
        return best

    def _search(self, rows: int) -> tuple[float, list[tuple[int, float]]]:
        """An entry of ``_searched``. The bytes that a split moves are still to be added."""
        e, inputs, units = self._efficiency, self._inputs, self._units
        prologue, partial, fixed = e.prologue, e.waves, e.split
        times = dict.fromkeys(SPLITS, float("inf"))
        tiles_tried = self._tiles
        if self._by_rows:
            tiles_tried = [next(tile[1:] for tile in self._by_rows if rows <= tile[0])]
        for tile_rows, across, step in tiles_tried:
            tiles = ceil(rows / tile_rows) * across / units
            if step * tiles * inputs >= times[1]:
                continue  # slower even without a last wave and a prologue
            split_least = step * tiles * (inputs + 2.0 * prologue) + fixed
            for split in self._splits:
                full = tiles * split
                waves = partial * ceil(full) + (1 - partial) * (full if full > 1.0 else 1.0)
                time = waves * step * (inputs / split + prologue)
                if time < times[split]:
                    times[split] = time
                if split_least >= times[1]:
                    break  # a split costs more than the rest of the last wave
        unsplit = times.pop(1)
        return unsplit, [(split, time) for split, time in times.items() if time + fixed < unsplit]
