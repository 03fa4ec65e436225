"""Paged attention on a GPU, by the kernels of ``kernels/triton/paged_attention.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from twostroke.kernels.triton.kv_store import store_keys_and_values
from twostroke.kernels.triton.paged_attention import combine_splits, paged_attention
from twostroke.layers.attention.base import AttentionMetadata, KernelCache, ScoreForm
from twostroke.layers.gpu.latent_attention import LatentKernel
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.gpu.tiles import (
    FEW_TOKENS,
    MIN_SPLIT,
    SPLITS,
    DeviceTables,
    Tiles,
    TileShape,
    tables_on,
    tiles_of,
)
from twostroke.layers.kv_layout import KVLayout, ScaledLayout

NO_SLOT = -1  # of a row whose keys and values are not kept


class Cache(NamedTuple):
    """One layer's keys or values, and their scales if they have some.

    Attributes:
        numbers: ``[blocks, block_size, kv_heads, head_dim]``.
        scales: The bits of bfloat16s, int16 ``[blocks, kv_heads, 1, block_size]``.
        pairs: Their memory as int32, the scales of two tokens in each.
    """

    numbers: Tensor
    scales: Tensor | None = None
    pairs: Tensor | None = None


class PagedBackend:
    """Attention over a paged cache, see ``AttentionBackend``; the arguments are ``SdpaBackend``'s.

    A row's numbers depend on its own request alone: not on the batch, nor on how many keys other
    requests have.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        operators: GpuOperators,
        layout: KVLayout,
        value_layout: KVLayout,
        form: ScoreForm,
    ) -> None:
        self.keys = [_parts(cache, layout) for cache in keys]
        self.values = [_parts(cache, value_layout) for cache in values]
        self.is_scaled = isinstance(layout, ScaledLayout)
        self.windows = tuple(sliding_windows)
        self.layout, self.value_layout, self.form = layout, value_layout, form
        self.operators = operators
        self.num_heads = num_heads
        self.group = num_heads // layout.kv_heads
        self.value_dim = form.latent_values or value_layout.head_dim
        self.key_tile, self.value_tile = _tile(layout.head_dim), _tile(self.value_dim)
        self.heads_of_tile = self.group
        self.latent: LatentKernel | None = None
        if form.latent_values is not None:
            latent = LatentKernel(num_heads, layout, form, operators)
            self.heads_of_tile, self.few, self.many = latent.heads_of_tile, latent.few, latent.many
            self.latent = latent
            return
        least = max(16, triton.next_power_of_2(self.group))  # tensor cores take no fewer rows
        width = max(self.key_tile, self.value_tile)
        # Hopper's products read their operands from shared memory, not from registers.
        is_crowded = self.is_scaled and (width > 256 or not operators.overlaps)
        self.few, self.many = _shapes(least, width, layout.read_dtype, is_crowded=is_crowded)

    @staticmethod
    def supports(form: ScoreForm, layout: KVLayout, operators: GpuOperators) -> bool:
        """Whether the kernels score so, and read such numbers: no chunked windows, no 4 bits."""
        is_known = layout.dtype is not torch.float8_e4m3fn or operators.has_fp8
        if isinstance(layout, ScaledLayout):  # in blocks whose scales begin at multiples of 4
            is_known = layout.bits == 8 and layout.block_size % 4 == 0
        is_plain = form.soft_cap is None and not form.sinks
        return is_known and not form.chunked and (form.latent_values is None or is_plain)

    def prepare(self, metadata: AttentionMetadata) -> PagedAttention:
        """Cut the step into tiles, and copy its tables to the device in one go."""
        lens = metadata.query_lens
        is_few = lens <= FEW_TOKENS
        few = tiles_of(lens, np.flatnonzero(is_few), self.few.rows // self.heads_of_tile)
        long = tiles_of(lens, np.flatnonzero(~is_few), self.many.rows // self.heads_of_tile)[:2]
        rows = np.flatnonzero(np.repeat(is_few, lens))
        arrays = [metadata.query_start, metadata.context_lens, *few, *long, rows]
        table = metadata.block_table
        tables = tables_on(metadata.slots.device, [*arrays, table.reshape(-1)])
        start, context, requests, starts, first_rows, many, many_starts, split, blocks = tables
        places = DeviceTables(
            start,
            context,
            blocks.view(table.shape),
            metadata.slots,
            Tiles(requests, starts, first_rows, split) if len(split) else None,
            Tiles(many, many_starts, many_starts) if len(many) else None,
        )
        return PagedAttention(self, places)

    def fixed_tables(self, rows: int, columns: int) -> PagedTables:
        return PagedTables(self, rows, columns)


class PagedTables:
    """See ``FixedTables``: each request is a tile of its own."""

    def __init__(self, backend: PagedBackend, rows: int, columns: int) -> None:
        self._backend = backend
        device = backend.keys[0].numbers.device
        self._order = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._starts = torch.zeros(rows, dtype=torch.int32, device=device)
        self._context_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._block_table = torch.zeros((rows, columns), dtype=torch.int32, device=device)
        self._slots = torch.full((rows,), NO_SLOT, device=device)

    def attention(self, rows: int) -> PagedAttention:
        order = self._order[:rows]
        places = DeviceTables(
            self._order[: rows + 1],
            self._context_lens[:rows],
            self._block_table[:rows],
            self._slots[:rows],
            few=Tiles(order, self._starts[:rows], order, order),
            many=None,
        )
        return PagedAttention(self._backend, places)

    def fill(self, metadata: AttentionMetadata, rows: int) -> None:
        lens = metadata.context_lens
        count = len(lens)
        columns = -(-int(lens.max()) // self._backend.layout.block_size)
        table = metadata.block_table[:, :columns]
        padded = np.concatenate((lens, np.zeros(rows - count, lens.dtype)))
        arrays: list[NDArray[np.signedinteger[Any]]] = [padded, table.reshape(-1)]
        contexts, blocks = tables_on(self._slots.device, arrays)
        self._context_lens[:rows].copy_(contexts)
        self._block_table[:count, :columns].copy_(blocks.view(count, columns))
        self._slots[:count].copy_(metadata.slots)
        self._slots[count:rows].fill_(NO_SLOT)


class PagedAttention:
    """Attention of one step, see ``Attention``."""

    __slots__ = ("_backend", "places")

    kernel_cache: KernelCache | None = None

    def __init__(self, backend: PagedBackend, places: DeviceTables) -> None:
        self._backend = backend
        self.places = places

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        own = self._backend
        if key is not None:
            self._store(layer, key, value)
        tokens, heads, _ = query.shape
        shape = (tokens, heads, own.value_dim)
        out = torch.empty(shape, dtype=query.dtype, device=query.device)
        if self.places.few is not None:
            self._attend_split(self.places.few, layer, query, sinks, out)
        if self.places.many is not None:
            self._launch(self.places.many, layer, query, sinks, out, own.many)
        return out

    def _store(self, layer: int, key: Tensor, value: Tensor | None) -> None:
        tables = 1 if value is None else 2  # latents are keys and values
        value = key if value is None else value
        own, tokens = self._backend, len(key)
        keys, values = own.keys[layer].numbers, own.values[layer].numbers
        layout = own.layout
        heads, key_dim, value_dim = layout.kv_heads, layout.head_dim, own.value_layout.head_dim
        tiles = map(triton.next_power_of_2, (heads, key_dim, value_dim))
        overlaps = own.operators.overlaps
        if tokens:
            store_keys_and_values[tokens, tables](
                key, value, keys, values, own.keys[layer].scales, own.values[layer].scales,
                self.places.slots,
                key.stride(0), key.stride(1), value.stride(0), value.stride(1),
                keys.stride(0), keys.stride(1), keys.stride(2),
                values.stride(0), values.stride(1), values.stride(2),
                heads, key_dim, value_dim, *tiles, layout.block_size,
                _bound(layout), own.is_scaled, overlaps,
                num_warps=4, launch_pdl=overlaps, enable_fp_fusion=not own.is_scaled,
            )  # fmt: skip

    def _attend_split(
        self, tiles: Tiles, layer: int, query: Tensor, sinks: Tensor | None, out: Tensor
    ) -> None:
        own = self._backend
        assert tiles.rows is not None
        _, heads, width = out.shape
        rows = len(tiles.rows)
        parts = torch.empty((rows, heads, SPLITS, width), device=out.device)
        stats = torch.empty((2, rows, heads, SPLITS), device=out.device)
        self._launch(tiles, layer, query, sinks, parts, own.few, stats)
        combine_splits[rows, heads](
            parts, stats[0], stats[1], sinks, out, tiles.rows, heads, width,
            triton.next_power_of_2(width), SPLITS, sinks is not None, own.operators.overlaps,
            num_warps=4, launch_pdl=own.operators.overlaps,
        )  # fmt: skip

    def _launch(
        self,
        tiles: Tiles,
        layer: int,
        query: Tensor,
        sinks: Tensor | None,
        out: Tensor,
        shape: TileShape,
        stats: Tensor | None = None,
    ) -> None:
        own, places = self._backend, self.places
        if own.latent is not None:
            latents, _, scales = own.keys[layer]
            window = own.windows[layer]
            own.latent(places, tiles, latents, scales, window, query, out, shape, stats)
            return
        keys, _, key_scales = own.keys[layer]
        values, _, value_scales = own.values[layer]
        window = own.windows[layer]
        key_dim, value_dim = own.layout.head_dim, own.value_layout.head_dim
        splits = 1 if stats is None else SPLITS
        highest, sums = (out, out) if stats is None else (stats[0], stats[1])
        paged_attention[len(tiles.requests), own.layout.kv_heads, splits](
            query, keys, values, key_scales, value_scales, out, highest, sums, sinks,
            tiles.requests, tiles.first_rows, tiles.starts, places.query_start, places.context_lens,
            places.block_table, places.block_table.stride(0), own.num_heads,
            query.stride(0), query.stride(1),
            keys.stride(0), keys.stride(1), keys.stride(2),
            values.stride(0), values.stride(1), values.stride(2),
            own.form.scale, own.form.soft_cap or 0.0, window or 0,
            own.group, key_dim, value_dim, own.key_tile, own.value_tile, own.layout.block_size,
            shape.rows, shape.keys, splits, MIN_SPLIT,
            sinks is not None, own.form.soft_cap is not None, window is not None, own.is_scaled,
            own.operators.product_type(query.dtype), own.operators.overlaps,
            num_warps=shape.warps, num_stages=shape.stages, launch_pdl=own.operators.overlaps,
        )  # fmt: skip


def _parts(cache: Tensor, layout: KVLayout) -> Cache:
    if not isinstance(layout, ScaledLayout):
        return Cache(cache)
    codes, scales = layout.parts(cache)
    return Cache(codes.view(torch.int8), scales, scales.view(torch.int32))


def _bound(layout: KVLayout) -> float:
    """The largest number of a format that reaches less far than what is written; else 0."""
    reaches = layout.dtype in (layout.read_dtype, torch.bfloat16, torch.float32)
    return 0.0 if reaches or isinstance(layout, ScaledLayout) else torch.finfo(layout.dtype).max


def _shapes(
    least: int, width: int, dtype: torch.dtype, *, is_crowded: bool
) -> tuple[TileShape, TileShape]:
    """Tiles for few queries and for many: a program holds rows times width in registers.

    By ``benchmarks/gpu/attention.py`` on an H200, where 128 keys are 5 % faster for prompts, and
    two steps in flight for few queries; both spill registers on other GPUs or formats. So does a
    step in flight for prompts where it ``is_crowded``: int8 is widened in registers. Float32 is
    there to be compared with alone.
    """
    if dtype.itemsize > 2:
        keys = max(16, min(32, 32 * 128 // width))
        exact = TileShape(least, keys, 8 if width > 256 else 4, 2)
        return exact, exact
    keys = max(16, min(64, 64 * 128 // width))
    few = TileShape(least, keys, 8 if least * width >= 8192 else 4, 3 if width <= 256 else 2)
    many_rows = 128 if width <= 128 else 64 if width <= 256 else 32
    return few, TileShape(max(least, many_rows), keys, 8, 1 if is_crowded else 2)


def _tile(dim: int) -> int:
    """The width at which heads are computed: the least that tensor cores take is 16."""
    return int(max(16, triton.next_power_of_2(dim)))
