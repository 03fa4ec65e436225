"""Paged attention by PyTorch's scaled dot product attention over gathered blocks; CPU and CUDA.

Requests with few query tokens (decode, speculation) go together in padded batches; longer chunks
one by one. Gathering copies each request's keys and values once per layer: simple and portable, not
the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.layers.attention.base import AttentionMetadata, IntArray, ScoreForm
from twostroke.layers.kv_layout import KVLayout, plain_layout

Positions = TypeVar("Positions", IntArray, Tensor)
# Up to this many query tokens a request joins a padded batch.
FEW_TOKENS = 8
# Contexts up to 2**5 blocks share one batch; longer ones are paired by powers of two, so padding at
# most doubles work.
_MIN_BUCKET = 5


class SdpaBackend:
    """Attention over a paged cache, see ``AttentionBackend``.

    Args:
        keys: Per layer ``[blocks, ...]``, like ``values``; owned by the caller. Layers
            that share a cache are given the same tensors.
        num_heads: Query heads, a multiple of ``kv_heads``.
        sliding_windows: Per layer, how many of the latest tokens a token sees; ``None`` is all.
        layout: How a block of keys lies in memory; by default as plain numbers.
        value_layout: The layout of values; by default that of keys.
        form: How scores are made; by default their scale is ``head_dim ** -0.5``.
    """

    def __init__(
        self,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        num_heads: int,
        sliding_windows: Sequence[int | None],
        layout: KVLayout | None = None,
        value_layout: KVLayout | None = None,
        form: ScoreForm | None = None,
    ) -> None:
        self._layout = layout or plain_layout(keys[0])
        pairs = list(zip(keys, values))
        self._form = form = form or ScoreForm(self._layout.head_dim**-0.5)
        self._caches = _Caches(pairs, self._layout, value_layout or self._layout, form)
        self._block_size = self._layout.block_size
        self._group = num_heads // self._layout.kv_heads
        self._windows = tuple(sliding_windows)

    def fixed_tables(self, rows: int, columns: int) -> None:
        """``None``: what it launches depends on how long requests are."""

    def prepare(self, metadata: AttentionMetadata) -> SdpaAttention:
        """Batch the step's requests, and make the indices and masks that all its layers share."""
        batches = []
        for requests, query_len in _batch_requests(metadata, self._block_size):
            batch = _Batch(_token_rows(metadata, requests, query_len), len(requests), query_len)
            for window in dict.fromkeys(self._windows):
                batch.contexts[window] = self._context(metadata, requests, query_len, window)
            batches.append(batch)
        return SdpaAttention(metadata.slots, batches, self._caches, self._windows)

    def _context(
        self, metadata: AttentionMetadata, requests: IntArray, query_len: int, window: int | None
    ) -> _Context:
        size, device, dtype = self._block_size, metadata.slots.device, self._layout.read_dtype
        context = metadata.context_lens[requests]  # [requests]
        start = context - query_len
        is_fresh = (
            len(requests) == 1
            and start[0] == 0
            and query_len > 1
            and (window is None or query_len <= window)
        )
        oldest = _oldest(start, window, self._form)
        first, last = oldest // size, (context - 1) // size
        # Clamped to the request's own last block: any other block might hold what a failing request
        # just wrote.
        columns = np.minimum(first[:, None] + np.arange((last - first).max() + 1), last[:, None])
        blocks = metadata.block_table[requests[:, None], columns]  # [requests, blocks]
        num_keys = int((context - first * size).max())
        blocks_on_device = torch.from_numpy(blocks.astype(np.int64).reshape(-1)).to(device)
        if is_fresh:
            return _Context(blocks_on_device, query_len, None, is_fresh)
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
            hidden |= key_position < _oldest(query_position, window, self._form)[:, :, None]
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
        blocks: ``[requests * blocks]``.
        num_keys: Keys of each request, from its first block on.
        mask: Additive, ``[requests, 1, queries, keys]``.
        is_fresh: Whether all that one request sees are the keys of this step, causally.
    """

    blocks: Tensor
    num_keys: int
    mask: Tensor | None
    is_fresh: bool = False


@dataclass(slots=True)
class _Batch:
    """Requests of equal query length that are attended together.

    ``rows`` are their tokens in the step.
    """

    rows: slice | Tensor
    num_requests: int
    query_len: int
    contexts: dict[int | None, _Context] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Caches:
    """Keys and values of each layer; of latent layers, their latents in place of both."""

    layers: Sequence[tuple[Tensor, Tensor]]
    key_layout: KVLayout
    value_layout: KVLayout
    form: ScoreForm

    @property
    def value_dim(self) -> int:
        return self.form.latent_values or self.value_layout.head_dim

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor | None) -> None:
        keys, values = self.layers[layer]
        self.key_layout.write(keys, slots, key)
        if value is not None:
            self.value_layout.write(values, slots, value)

    def as_read(self, key: Tensor, value: Tensor | None) -> tuple[Tensor, Tensor]:
        key = self.key_layout.as_read(key)
        if value is not None:
            return key, self.value_layout.as_read(value)
        return key, key[..., : self.value_dim]

    def gather(self, layer: int, batch: _Batch, context: _Context) -> tuple[Tensor, Tensor]:
        """Keys and values of a batch, ``[requests, keys, kv_heads, width]`` each."""
        keys, values = self.layers[layer]
        key = _of_requests(self.key_layout.read(keys, context.blocks), batch, context)
        if self.form.latent_values is not None:
            return key, key[..., : self.value_dim]
        value = self.value_layout.read(values, context.blocks)
        return key, _of_requests(value, batch, context)


def _oldest(positions: Positions, window: int | None, form: ScoreForm) -> Positions:
    """The first position that each of some sees."""
    if window is None:
        return positions * 0
    return positions // window * window if form.chunked else (positions - window + 1).clip(0)


def _of_requests(blocks: Tensor, batch: _Batch, context: _Context) -> Tensor:
    return blocks.view(batch.num_requests, -1, *blocks.shape[2:])[:, : context.num_keys]


class SdpaAttention:
    """Attention of one step, see ``Attention``."""

    kernel_cache = None

    def __init__(
        self,
        slots: Tensor,
        batches: list[_Batch],
        caches: _Caches,
        windows: tuple[int | None, ...],
    ) -> None:
        self._slots = slots
        self._batches = batches
        self._caches = caches
        self._windows = windows

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if key is not None:
            self._caches.write(layer, self._slots, key, value)
        if len(self._batches) == 1 and isinstance(self._batches[0].rows, slice):
            return self._attend(layer, self._batches[0], query, key, value, sinks)
        out = query.new_empty(*query.shape[:-1], self._caches.value_dim)
        for batch in self._batches:
            rows = batch.rows
            own_key, own_value = (None if own is None else own[rows] for own in (key, value))
            out[rows] = self._attend(layer, batch, query[rows], own_key, own_value, sinks)
        return out

    def _attend(
        self,
        layer: int,
        batch: _Batch,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        context, caches = batch.contexts[self._windows[layer]], self._caches
        form = _Scoring(caches.form.scale, caches.form.soft_cap, sinks)
        if context.is_fresh and key is not None:  # what was just written need not be gathered
            own_keys, own_values = caches.as_read(key, value)
            return _attend_chunk(query, own_keys, own_values, context, form)
        keys, values = caches.gather(layer, batch, context)
        if batch.query_len > FEW_TOKENS or context.is_fresh:
            return _attend_chunk(query, keys[0], values[0], context, form)
        return _attend_few(query, keys, values, context.mask, batch.query_len, form)


class _Scoring(NamedTuple):
    """How one layer scores, see ``ScoreForm``; ``sinks`` is ``[heads]``, if it has them."""

    scale: float
    soft_cap: float | None
    sinks: Tensor | None


def _attend_chunk(
    query: Tensor, key: Tensor, value: Tensor, context: _Context, form: _Scoring
) -> Tensor:
    """Attention of one request.

    Query ``[queries, heads, key_dim]``, key ``[keys, kv_heads, key_dim]``, value ``[keys, kv_heads,
    value_dim]``.
    """
    queries, heads, key_dim = query.shape
    num_keys, kv_heads, value_dim = value.shape
    group = heads // kv_heads
    # KV heads take the batch dimension, so that sharing one among a group of queries needs no copy.
    q = query.view(queries, kv_heads, group, key_dim).permute(1, 2, 0, 3)
    k = key.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, num_keys, key_dim)
    v = value.transpose(0, 1).unsqueeze(1).expand(kv_heads, group, num_keys, value_dim)
    if form.sinks is not None:
        form = form._replace(sinks=form.sinks.view(kv_heads, group, 1))
    out = _weigh(q, k, v, context.mask, form, is_causal=context.is_fresh)
    return out.permute(2, 0, 1, 3).reshape(queries, heads, value_dim)


def _attend_few(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    query_len: int,
    form: _Scoring,
) -> Tensor:
    """Attention of requests of ``query_len`` tokens each.

    Query ``[tokens, heads, key_dim]``, key and value ``[requests, keys, kv_heads, width]``.
    """
    tokens, heads, key_dim = query.shape
    requests, _, kv_heads, value_dim = value.shape
    group = heads // kv_heads
    # The heads of a group become rows of one matrix product with the KV head that they share.
    q = query.view(requests, query_len, kv_heads, group, key_dim).transpose(1, 2)
    q = q.reshape(requests, kv_heads, query_len * group, key_dim)
    if form.sinks is not None:  # [kv_heads, query_len * group]
        form = form._replace(sinks=form.sinks.view(kv_heads, group).repeat(1, query_len))
    out = _weigh(q, key.transpose(1, 2), value.transpose(1, 2), mask, form)
    out = out.view(requests, kv_heads, query_len, group, value_dim).transpose(1, 2)
    return out.reshape(tokens, heads, value_dim)


def _weigh(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    form: _Scoring,
    *,
    is_causal: bool = False,
) -> Tensor:
    """``softmax(cap(Q K^T * scale) + mask) V`` over the last two dimensions."""
    if form.soft_cap is None and form.sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=form.scale
        )
    scores = (query @ key.transpose(-1, -2)).float() * form.scale
    if form.soft_cap is not None:
        scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
    if is_causal:
        queries, keys = scores.shape[-2:]
        hidden = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu_(1)
        scores = scores.masked_fill_(hidden, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    if form.sinks is None:
        return torch.softmax(scores, -1).to(value.dtype) @ value
    return _softmax_with(form.sinks, scores).to(value.dtype) @ value


def _softmax_with(sinks: Tensor, scores: Tensor) -> Tensor:
    """Weights ``[..., queries, keys]``; the sinks ``[..., queries]`` take the rest of each sum."""
    highest = torch.maximum(scores.amax(-1), sinks)[..., None]
    weights = torch.exp(scores - highest)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks[..., None] - highest))


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
