"""Attention over latents on a GPU, by the kernel of ``kernels/triton/latent_attention.py``."""

from __future__ import annotations

import triton
from torch import Tensor

from twostroke.kernels.triton.latent_attention import latent_attention
from twostroke.layers.attention.base import ScoreForm
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.gpu.tiles import MIN_SPLIT, SPLITS, DeviceTables, Tiles, TileShape
from twostroke.layers.kv_layout import KVLayout, ScaledLayout

# Heads times queries of a program: what it sums up, rows of some 512 numbers, is in registers, and
# 64 rows would spill some.
_MAX_ROWS = 32


class LatentKernel:
    """Attends to latents of one layout.

    Attributes:
        heads_of_tile: Query heads of a program.
        few, many: Tiles for few queries and for many; float32 is there to be compared with alone.
    """

    def __init__(
        self, heads: int, layout: KVLayout, form: ScoreForm, operators: GpuOperators
    ) -> None:
        assert form.latent_values is not None
        self._heads, self._layout, self._operators = heads, layout, operators
        self._scale, self._width = form.scale, form.latent_values
        rows = 16 if layout.read_dtype.itemsize > 2 else _MAX_ROWS
        self.heads_of_tile = min(rows, int(triton.next_power_of_2(heads)))
        keys, warps = (16, 4) if rows == 16 else (32, 8)
        # Numbers of 8 bits are widened in registers, and some spill with as many latents of fp8 in
        # a split, or with steps of int8 in flight, which has scales besides.
        is_scaled = isinstance(layout, ScaledLayout)
        stages = 1 if is_scaled else 2
        few_keys = 16 if layout.dtype.itemsize == 1 and not is_scaled else keys
        self.few = TileShape(max(16, self.heads_of_tile), few_keys, warps, stages)
        self.many = TileShape(rows, keys, warps, stages)

    def __call__(
        self,
        places: DeviceTables,
        tiles: Tiles,
        latents: Tensor,
        scales: Tensor | None,
        window: int | None,
        query: Tensor,
        out: Tensor,
        shape: TileShape,
        stats: Tensor | None,
    ) -> None:
        """Write what tiles of queries see, or with ``stats`` the parts of it, into ``out``."""
        overlaps, width = self._operators.overlaps, self._width
        rotated = self._layout.head_dim - width
        splits = 1 if stats is None else SPLITS
        highest, sums = (out, out) if stats is None else (stats[0], stats[1])
        head_tiles = triton.cdiv(self._heads, self.heads_of_tile)
        latent_attention[len(tiles.requests), head_tiles, splits](
            query, latents, scales, out, highest, sums,
            tiles.requests, tiles.first_rows, tiles.starts, places.query_start, places.context_lens,
            places.block_table, places.block_table.stride(0), self._heads,
            query.stride(0), query.stride(1),
            latents.stride(0), latents.stride(1), self._scale, window or 0, width, rotated,
            triton.next_power_of_2(width), max(16, triton.next_power_of_2(rotated)),
            self.heads_of_tile, self._layout.block_size, shape.rows, shape.keys, splits, MIN_SPLIT,
            window is not None, scales is not None, self._operators.product_type(query.dtype),
            overlaps,
            num_warps=shape.warps, num_stages=shape.stages, launch_pdl=overlaps,
        )  # fmt: skip
