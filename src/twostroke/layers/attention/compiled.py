"""Paged attention on a CPU with the compiled kernel: decoding requests read their blocks in place, without a gather.

Long chunks of a prompt go to ``SdpaBackend``: there the gather is small beside the arithmetic.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostroke.kernels.library import MAX_HEAD_DIM, AttentionCall, Library
from twostroke.layers.attention.base import AttentionMetadata
from twostroke.layers.attention.sdpa import FEW_TOKENS, SdpaAttention, SdpaBackend


class CompiledBackend:
    """Attention over a paged cache in bfloat16 or float32 on a CPU, see ``AttentionBackend`` and ``SdpaBackend``."""

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        library: Library,
    ) -> None:
        self._long = SdpaBackend(keys, values, num_heads, sliding_windows)
        self._library = library
        self._heads = num_heads
        _, block_size, kv_heads, head_dim = keys[0].shape
        self._slot_views = [
            (k.view(-1, kv_heads, head_dim), v.view(-1, kv_heads, head_dim)) for k, v in zip(keys, values)
        ]
        self._calls = [
            AttentionCall(
                keys=k.data_ptr(),
                values=v.data_ptr(),
                heads=num_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                block_size=block_size,
                window=window or 0,
                scale=head_dim**-0.5,
                is_float=k.dtype is torch.float32,
            )
            for k, v, window in zip(keys, values, sliding_windows)
        ]

    @staticmethod
    def supports(keys: Tensor) -> bool:
        """Whether the kernel takes this cache ``[blocks, block_size, kv_heads, head_dim]``."""
        fits = keys.shape[-1] % 16 == 0 and keys.shape[-1] <= MAX_HEAD_DIM
        return fits and keys.device.type == "cpu" and keys.dtype in (torch.float32, torch.bfloat16)

    def prepare(self, metadata: AttentionMetadata) -> CompiledAttention:
        """Point every layer's call at this step's tables."""
        few = np.flatnonzero(metadata.query_lens <= FEW_TOKENS)
        for call in self._calls:
            call.block_table, call.table_stride = metadata.block_table.ctypes.data, metadata.block_table.shape[1]
            call.query_start = metadata.query_start.ctypes.data
            call.context_lens = metadata.context_lens.ctypes.data
            call.requests, call.num_requests = few.ctypes.data, len(few)
        long = None if len(few) == len(metadata.context_lens) else self._long.prepare_long(metadata)
        return CompiledAttention(metadata, few, self._calls, self._slot_views, self._heads, self._library, long)


@dataclass(slots=True)
class CompiledAttention:
    """Attention of one step, see ``Attention``. Holds what the calls point to."""

    metadata: AttentionMetadata
    few: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    calls: list[AttentionCall]
    slot_views: list[tuple[Tensor, Tensor]]
    heads: int
    library: Library
    long: SdpaAttention | None

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.slot_views[layer]
        keys.index_copy_(0, self.metadata.slots, key)
        values.index_copy_(0, self.metadata.slots, value)
        out = torch.empty(query.shape, dtype=query.dtype)
        if self.few.size:
            call = self.calls[layer]
            call.query, call.query_stride, call.out = query.data_ptr(), query.stride(0), out.data_ptr()
            self.library.attention(ctypes.byref(call))
        if self.long is not None:
            self.long.attend_into(out, layer, query, key, value)
        return out
