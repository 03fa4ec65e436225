"""Time of a matrix product on a device that computes output tiles on many units at once.

A product of ``rows`` by ``outputs`` is cut into tiles, the tiles are dealt out to the compute units in waves. Libraries
choose the tile that suits a shape, and split long inner dimensions when there are few tiles; so does this model, by
trying all and keeping the fastest. What that explains and a plain roofline does not: steps at multiples of a tile,
poor use of a large device by small products, and the plateau between few rows and many.
"""

from __future__ import annotations

from math import ceil

from twostroke.simulator.efficiencies import GemmEfficiency
from twostroke.simulator.kernel_time import KernelTime, combine

# Rows and outputs of a tile; those that the common libraries have for half-precision products.
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
# Largest first: for many rows they win, and their time rules out most others at a glance.
TRIED = tuple(reversed(TILES))
SPLITS = (1, 2, 4, 8)
# A split product writes and reads float32 partial sums; most of that stays in the cache.
PARTIAL_BYTES = 8 * 0.3


def gemm_time(
    rows: float,
    outputs: float,
    inputs: int,
    *,
    efficiency: GemmEfficiency,
    flops: float,
    bandwidth: float,
    units: int,
    weight_bytes: float,
    activation_bytes: float = 2.0,
) -> KernelTime:
    """Time of ``[rows, inputs] x [inputs, outputs]``, the weights read from memory once.

    Args:
        flops: The device's dense peak, FLOP/s; ``bandwidth``: bytes/s; ``units``: its compute units.
        weight_bytes: Bytes of one weight; ``activation_bytes`` of one element of inputs and outputs.
    """
    moved = weight_bytes * outputs * inputs + activation_bytes * rows * (inputs + outputs)
    memory = moved / (efficiency.memory * bandwidth)
    compute = _compute(rows, outputs, inputs, efficiency, flops, bandwidth, units)
    return combine(compute, memory, efficiency.launch, efficiency.sharpness)


def _compute(
    rows: float, outputs: float, inputs: int, e: GemmEfficiency, flops: float, bandwidth: float, units: int
) -> float:
    if not e.half_tile:
        return 2.0 * rows * outputs * inputs / (e.compute * flops)
    best = float("inf")
    for tile_rows, tile_outputs in TRIED:
        area = tile_rows * tile_outputs
        step = 2.0 * (area + e.half_tile) * units / (e.compute * flops)  # seconds per step along the inner dimension
        tiles = ceil(rows / tile_rows) * ceil(outputs / tile_outputs) / units
        if step * tiles * inputs >= best:
            continue  # even without a last wave and a prologue
        for split in SPLITS:
            waves = e.waves * ceil(tiles * split) + (1 - e.waves) * max(tiles * split, 1.0)
            time = waves * step * (inputs / split + e.prologue)
            if split > 1:
                time += e.split + PARTIAL_BYTES * rows * outputs * split / (e.memory * bandwidth)
            if time < best:
                best = time
            if step * tiles * inputs + e.split >= best:
                break  # a further split would cost more than the rest of the last wave
    return best
