"""Paged attention by PyTorch's scaled dot product attention over gathered blocks; CPU and CUDA.

Requests with few query tokens (decode, speculation) go together in padded batches; longer chunks
one by one. Gathering copies each request's keys and values once per layer: simple and portable, not
the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.layers.attention.base import AttentionMetadata, IntArray
from twostroke.layers.kv_layout import KVLayout, plain_layout

# Up to this many query tokens a request joins a padded batch.
FEW_TOKENS = 8
# Contexts up to 2**5 blocks share one batch; longer ones are paired by powers of two, so padding at
# most doubles work.
_MIN_BUCKET = 5


class SdpaBackend:
    """Attention over a paged cache, see ``AttentionBackend``.

    Args:
        keys: Per layer ``[blocks, ...]``, owned by the caller; ``values`` the same.
        num_heads: Query heads, a multiple of ``kv_heads``.
        sliding_windows: Per layer, how many of the latest tokens a token sees; ``None`` is all.
        layout: How a block lies in memory; by default as plain numbers.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        layout: KVLayout | None = None,
    ) -> None:
        self._caches = list(zip(keys, values))
        self._layout = layout or plain_layout(keys[0])
        self._block_size = self._layout.block_size
        self._group = num_heads // self._layout.kv_heads
        self._windows = tuple(sliding_windows)

    def prepare(self, metadata: AttentionMetadata) -> SdpaAttention:
        """Batch the step's requests, and make the indices and masks that all its layers share."""
        batches = []
        for requests, query_len in _batch_requests(metadata, self._block_size):
            batch = _Batch(_token_rows(metadata, requests, query_len), len(requests), query_len)
            for window in dict.fromkeys(self._windows):
                batch.contexts[window] = self._context(metadata, requests, query_len, window)
            batches.append(batch)
        return SdpaAttention(metadata.slots, batches, self._caches, self._layout, self._windows)

    def _context(
        self, metadata: AttentionMetadata, requests: IntArray, query_len: int, window: int | None
    ) -> _Context:
        size, device, dtype = self._block_size, metadata.slots.device, self._layout.read_dtype
        context = metadata.context_lens[requests]  # [requests]
        start = context - query_len
        if (
            len(requests) == 1
            and start[0] == 0
            and query_len > 1
            and (window is None or query_len <= window)
        ):
            return _Context(None, query_len, None)
        oldest = np.zeros_like(start) if window is None else np.maximum(start - window + 1, 0)
        first, last = oldest // size, (context - 1) // size
        # Clamped to the request's own last block: any other block might hold what a failing request
        # just wrote.
        columns = np.minimum(first[:, None] + np.arange((last - first).max() + 1), last[:, None])
        blocks = metadata.block_table[requests[:, None], columns]  # [requests, blocks]
        num_keys = int((context - first * size).max())
        blocks_on_device = torch.from_numpy(blocks.astype(np.int64).reshape(-1)).to(device)
        unmasked = query_len == 1 and bool((context - first * size == num_keys).all())
        if unmasked and (window is None or bool((oldest == first * size).all())):
            return _Context(blocks_on_device, num_keys, None)
        key_position = torch.from_numpy(first * size).to(device)[:, None, None] + torch.arange(
            num_keys, device=device
        )
        query_position = torch.from_numpy(start).to(device)[:, None] + torch.arange(
            query_len, device=device
        )
        # Booleans at once: a matrix of distances would be eight times as large.
        hidden = key_position > query_position[:, :, None]  # [requests, queries, keys]
        if window is not None:
            hidden |= key_position <= query_position[:, :, None] - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(
            hidden, float("-inf")
        )
        if 1 < query_len <= FEW_TOKENS:
            mask = mask.repeat_interleave(self._group, dim=1)
        return _Context(blocks_on_device, num_keys, mask[:, None])


@dataclass(slots=True)
class _Context:
    """What a batch of requests reads.

    Attributes:
        blocks: ``[requests * blocks]``; ``None`` is the step's own keys, causally.
        num_keys: Keys of each request, from its first block on.
        mask: Additive, ``[requests, 1, queries, keys]``.
    """

    blocks: Tensor | None
    num_keys: int
    mask: Tensor | None


@dataclass(slots=True)
class _Batch:
    """Requests of equal query length that are attended together.

    ``rows`` are their tokens in the step.
    """

    rows: slice | Tensor
    num_requests: int
    query_len: int
    contexts: dict[int | None, _Context] = field(default_factory=dict)


class SdpaAttention:
    """Attention of one step, see ``Attention``."""

    kernel_cache = None

    def __init__(
        self,
        slots: Tensor,
        batches: list[_Batch],
        caches: list[tuple[Tensor, Tensor]],
        layout: KVLayout,
        windows: tuple[int | None, ...],
    ) -> None:
        self._slots = slots
        self._batches = batches
        self._caches = caches
        self._layout = layout
        self._windows = windows

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self._caches[layer]
        self._layout.write(keys, self._slots, key)
        self._layout.write(values, self._slots, value)
        window = self._windows[layer]
        if len(self._batches) == 1 and isinstance(self._batches[0].rows, slice):
            return self._attend(layer, self._batches[0], window, query, key, value)
        out = torch.empty_like(query)
        for batch in self._batches:
            rows = batch.rows
            out[rows] = self._attend(layer, batch, window, query[rows], key[rows], value[rows])
        return out

    def _attend(
        self,
        layer: int,
        batch: _Batch,
        window: int | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        context = batch.contexts[window]
        if context.blocks is None:
            key, value = self._layout.as_read(key), self._layout.as_read(value)
            return _attend_chunk(query, key, value, None, is_causal=True)
        gathered = [
            self._layout.read(cache, context.blocks).view(batch.num_requests, -1, *key.shape[1:])[
                :, : context.num_keys
            ]
            for cache in self._caches[layer]
        ]  # [requests, keys, kv_heads, head_dim]
        if batch.query_len > FEW_TOKENS:
            return _attend_chunk(
                query, gathered[0][0], gathered[1][0], context.mask, is_causal=False
            )
        return _attend_few(query, gathered[0], gathered[1], context.mask, batch.query_len)


def _attend_chunk(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Attention of one request.

    Query ``[queries, heads, head_dim]``, key and value ``[keys, kv_heads, head_dim]``.
    """
    queries, heads, head_dim = query.shape
    num_keys, kv_heads, _ = key.shape
    group = heads // kv_heads
    # KV heads take the batch dimension, so that sharing one among a group of queries needs no copy.
    q = query.view(queries, kv_heads, group, head_dim).permute(1, 2, 0, 3)
    k = key.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, num_keys, head_dim)
    v = value.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, num_keys, head_dim)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    return out.permute(2, 0, 1, 3).reshape(queries, heads, head_dim)


def _attend_few(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, query_len: int
) -> Tensor:
    """Attention of requests of ``query_len`` tokens each.

    Query ``[tokens, heads, head_dim]``, key and value ``[requests, keys, kv_heads, head_dim]``.
    """
    tokens, heads, head_dim = query.shape
    requests, _, kv_heads, _ = key.shape
    group = heads // kv_heads
    # The heads of a group become rows of one matrix product with the KV head that they share.
    q = query.view(requests, query_len, kv_heads, group, head_dim).transpose(1, 2)
    q = q.reshape(requests, kv_heads, query_len * group, head_dim)
    out = F.scaled_dot_product_attention(
        q, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    out = out.view(requests, kv_heads, query_len, group, head_dim).transpose(1, 2)
    return out.reshape(tokens, heads, head_dim)


def _batch_requests(metadata: AttentionMetadata, block_size: int) -> list[tuple[IntArray, int]]:
    """Which requests are attended together, and the query length that they share."""
    few: dict[tuple[int, int], list[int]] = {}
    batches: list[tuple[IntArray, int]] = []
    for request, (length, context) in enumerate(
        zip(metadata.query_lens.tolist(), metadata.context_lens.tolist())
    ):
        if length > FEW_TOKENS:
            batches.append((np.array([request]), length))
        else:
            bucket = max((context // block_size).bit_length(), _MIN_BUCKET)
            few.setdefault((length, bucket), []).append(request)
    return batches + [(np.array(requests), length) for (length, _), requests in few.items()]


def _token_rows(metadata: AttentionMetadata, requests: IntArray, query_len: int) -> slice | Tensor:
    first, last = int(requests[0]), int(requests[-1])
    if last - first + 1 == len(requests):
        return slice(int(metadata.query_start[first]), int(metadata.query_start[last + 1]))
    rows = metadata.query_start[requests][:, None] + np.arange(query_len)
    return torch.from_numpy(rows.reshape(-1)).to(metadata.slots.device)
