"""Attention written as its formula, against which the fast backends are checked.

No cache, no blocks, float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.layers.kv_layout import KVLayout


class ReferenceAttention:
    """``softmax(Q K^T / sqrt(d) + mask) V`` over one whole sequence from position 0.

    Args:
        sliding_windows: Per layer, how many of the latest tokens a token sees; ``None`` is all.
        layout: Keys and values are seen as a cache of this layout would show them.
    """

    kernel_cache = None

    def __init__(
        self, sliding_windows: Sequence[int | None], layout: KVLayout | None = None
    ) -> None:
        self._windows = sliding_windows
        self._layout = layout

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tokens, heads, head_dim = query.shape
        group = heads // key.shape[1]
        if self._layout is not None:
            key, value = self._layout.as_read(key), self._layout.as_read(value)
        q = query.float().transpose(0, 1)  # [heads, tokens, head_dim]
        k = key.float().repeat_interleave(group, dim=1).transpose(0, 1)
        v = value.float().repeat_interleave(group, dim=1).transpose(0, 1)
        position = torch.arange(tokens, device=query.device)
        distance = position[:, None] - position[None, :]  # [queries, keys]
        hidden = distance < 0
        window = self._windows[layer]
        if window is not None:
            hidden = hidden | (distance >= window)
        scores = q @ k.transpose(1, 2) / head_dim**0.5  # [heads, queries, keys]
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return (weights @ v).transpose(0, 1).to(query.dtype)  # [tokens, heads, head_dim]
