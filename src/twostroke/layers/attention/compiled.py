"""Paged attention on a CPU with the compiled kernel: blocks are read in place, without a gather."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.calls import AttentionCall
from twostroke.kernels.library import MAX_HEAD_DIM, Library
from twostroke.layers.attention.base import (
    AttentionMetadata,
    KernelCache,
    LayerCache,
    LayerGroup,
    ScoreForm,
)
from twostroke.layers.kv_layout import KVLayout, plain_layout

# As ``cpp/kernels.hpp`` numbers the formats of the cache.
CACHE_FORMATS = {"int8": 1, "int4": 2, "fp8": 3}
# Beyond it, sums of products of integers might not fit into 32 bits.
MAX_SCALED_DIM = 512


class CompiledBackend:
    """Attention over a paged cache on a CPU, see ``AttentionBackend``.

    The model computes in bfloat16 or float32; the cache holds the same, int8, int4 or fp8.

    Arguments as those of ``SdpaBackend``.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        library: Library,
        layout: KVLayout | None = None,
        value_layout: KVLayout | None = None,
        form: ScoreForm | None = None,
    ) -> None:
        self._library = library
        layout = layout or plain_layout(keys[0])
        self._layouts = layout, value_layout or layout
        form = form or ScoreForm(layout.head_dim**-0.5)
        self._layers = {
            layer: LayerCache(k, v, window or 0)
            for layer, (k, v, window) in enumerate(zip(keys, values, sliding_windows))
        }
        width = self._layouts[1].head_dim
        self._call = AttentionCall(
            heads=num_heads,
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            block_size=layout.block_size,
            value_dim=form.latent_values or width,
            value_width=width,
            key_stride=keys[0].stride(0),
            value_stride=values[0].stride(0),
            scale=form.scale,
            soft_cap=form.soft_cap or 0.0,
            chunked=form.chunked,
            is_float=layout.read_dtype is torch.float32,
            cache_format=CACHE_FORMATS.get(layout.name, 0),
        )

    @staticmethod
    def supports(
        keys: Tensor,
        layout: KVLayout | None = None,
        value_layout: KVLayout | None = None,
        form: ScoreForm | None = None,
    ) -> bool:
        """Whether the kernels take this cache of one layer."""
        layout = layout or plain_layout(keys)
        values = value_layout or layout
        sizes = [layout.head_dim, values.head_dim, (form and form.latent_values) or values.head_dim]
        multiple = 32 if layout.name == "int4" else 16
        largest = MAX_SCALED_DIM if layout.name in ("int8", "int4") else MAX_HEAD_DIM
        fits = all(size % multiple == 0 and size <= largest for size in sizes)
        known = layout.name in CACHE_FORMATS or layout.dtype is layout.read_dtype
        computes = layout.read_dtype in (torch.float32, torch.bfloat16)
        is_alike = layout.name == values.name
        on_cpu = keys[0].is_contiguous() and keys.device.type == "cpu"
        return fits and known and computes and is_alike and on_cpu

    def fixed_tables(self, rows: int, columns: int) -> None:
        """``None``: what it launches depends on how long requests are."""

    def prepare(self, metadata: AttentionMetadata) -> CompiledAttention:
        """Point the call at this step's tables."""
        call, count, table = self._call, len(metadata.context_lens), metadata.block_table
        call.block_table, call.table_stride = table.ctypes.data, table.shape[1]
        call.query_start = metadata.query_start.ctypes.data
        call.context_lens = metadata.context_lens.ctypes.data
        call.num_requests = count
        cache = KernelCache([LayerGroup(call, metadata.slots)], self._layers)
        return CompiledAttention(cache, self._library, metadata, self._layouts)


@dataclass(slots=True)
class CompiledAttention:
    """Attention of one step, see ``Attention``. Holds what the call points to."""

    kernel_cache: KernelCache
    library: Library
    metadata: AttentionMetadata
    layouts: tuple[KVLayout, KVLayout]  # of keys and of values

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        cache, call = self.kernel_cache.layers[layer], self.kernel_cache.groups[0].call
        if key is not None:
            self.layouts[0].write(cache.keys, self.metadata.slots, key)
        if value is not None:
            self.layouts[1].write(cache.values, self.metadata.slots, value)
        if query.stride()[1:] != (query.shape[2], 1):
            query = query.contiguous()
        out = torch.empty(*query.shape[:2], call.value_dim, dtype=query.dtype)
        call.keys, call.values = cache.keys.data_ptr(), cache.values.data_ptr()
        call.window = cache.window
        call.query, call.query_stride, call.out = query.data_ptr(), query.stride(0), out.data_ptr()
        call.sinks = None if sinks is None else sinks.data_ptr()
        self.library.attention(ctypes.byref(call))
        return out
