"""Paged attention on a CPU with the compiled kernel: blocks are read in place, without a gather."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.kernels.library import MAX_HEAD_DIM, AttentionCall, Library
from twostroke.layers.attention.base import (
    AttentionMetadata,
    KernelCache,
    LayerCache,
)


class CompiledBackend:
    """Attention over a paged cache in bfloat16 or float32 on a CPU, see ``AttentionBackend``.

    Arguments as those of ``SdpaBackend``.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        library: Library,
    ) -> None:
        self._library = library
        _, block_size, kv_heads, head_dim = keys[0].shape
        self._layers = [
            LayerCache(k.view(-1, kv_heads, head_dim), v.view(-1, kv_heads, head_dim), window or 0)
            for k, v, window in zip(keys, values, sliding_windows)
        ]
        self._call = AttentionCall(
            heads=num_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            block_size=block_size,
            scale=head_dim**-0.5,
            is_float=keys[0].dtype is torch.float32,
        )

    @staticmethod
    def supports(keys: Tensor) -> bool:
        """Whether the kernel takes this cache ``[blocks, block_size, kv_heads, head_dim]``."""
        fits = keys.shape[-1] % 16 == 0 and keys.shape[-1] <= MAX_HEAD_DIM
        return fits and keys.device.type == "cpu" and keys.dtype in (torch.float32, torch.bfloat16)

    def prepare(self, metadata: AttentionMetadata) -> CompiledAttention:
        """Point the call at this step's tables."""
        call, count, table = self._call, len(metadata.context_lens), metadata.block_table
        call.block_table, call.table_stride = table.ctypes.data, table.shape[1]
        call.query_start = metadata.query_start.ctypes.data
        call.context_lens = metadata.context_lens.ctypes.data
        call.num_requests = count
        cache = KernelCache(call, self._layers, metadata.slots)
        return CompiledAttention(cache, self._library, metadata)


@dataclass(slots=True)
class CompiledAttention:
    """Attention of one step, see ``Attention``. Holds what the call points to."""

    kernel_cache: KernelCache
    library: Library
    metadata: AttentionMetadata

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        cache, call = self.kernel_cache.layers[layer], self.kernel_cache.call
        cache.keys.index_copy_(0, self.metadata.slots, key)
        cache.values.index_copy_(0, self.metadata.slots, value)
        out = torch.empty(query.shape, dtype=query.dtype)
        call.keys, call.values = cache.keys.data_ptr(), cache.values.data_ptr()
        call.window = cache.window
        call.query, call.query_stride, call.out = query.data_ptr(), query.stride(0), out.data_ptr()
        self.library.attention(ctypes.byref(call))
        return out
