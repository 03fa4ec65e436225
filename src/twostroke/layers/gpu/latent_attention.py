"""Attention over latents on a GPU, by the kernel of ``kernels/triton/latent_attention.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from twostroke.kernels.triton.latent_attention import latent_attention
from twostroke.layers.gpu.tiles import MIN_SPLIT, SPLITS, TileShape

if TYPE_CHECKING:
    from twostroke.layers.gpu.paged_attention import DeviceTables, PagedBackend
    from twostroke.layers.gpu.tiles import Tiles

# Heads times queries of a program: what it sums up, rows of some 512 numbers, is in registers, and
# 64 rows would spill some.
_MAX_ROWS = 32


def latent_shapes(heads: int, dtype: torch.dtype) -> tuple[int, TileShape, TileShape]:
    """Heads of a tile, and tiles for few queries and for many.

    Float32 is there to be compared with alone.
    """
    if dtype.itemsize > 2:
        shape = TileShape(16, 16, 4, 2)
        return min(16, int(triton.next_power_of_2(heads))), shape, shape
    tile = min(_MAX_ROWS, int(triton.next_power_of_2(heads)))
    few, many = max(16, tile), _MAX_ROWS
    return tile, TileShape(few, 32, 8, 2), TileShape(many, 32, 8, 2)


def attend_latents(
    backend: PagedBackend,
    places: DeviceTables,
    tiles: Tiles,
    layer: int,
    query: Tensor,
    out: Tensor,
    shape: TileShape,
    stats: Tensor | None,
) -> None:
    """Write what tiles of queries see, or with ``stats`` the parts of it, into ``out``."""
    latents, window, overlaps = (
        backend.keys[layer],
        backend.windows[layer],
        backend.operators.overlaps,
    )
    width = backend.value_dim
    rotated = backend.layout.head_dim - width
    splits = 1 if stats is None else SPLITS
    highest, sums = (out, out) if stats is None else (stats[0], stats[1])
    head_tiles = triton.cdiv(backend.num_heads, backend.heads_of_tile)
    latent_attention[len(tiles.requests), head_tiles, splits](
        query, latents, out, highest, sums, tiles.requests, tiles.first_rows, tiles.starts,
        places.query_start, places.context_lens, places.block_table, places.block_table.stride(0),
        backend.num_heads, query.stride(0), query.stride(1), latents.stride(0), latents.stride(1),
        backend.form.scale, window or 0, width, rotated, triton.next_power_of_2(width),
        max(16, triton.next_power_of_2(rotated)), backend.heads_of_tile, backend.layout.block_size,
        shape.rows, shape.keys, splits, MIN_SPLIT, window is not None,
        backend.operators.product_type(query.dtype), overlaps,
        num_warps=shape.warps, num_stages=shape.stages, launch_pdl=overlaps,
    )  # fmt: skip
