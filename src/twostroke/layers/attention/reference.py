"""Attention written as its formula, against which the fast backends are checked.

No cache, no blocks, float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.layers.kv_layout import KVLayout
from twostroke.model_spec.layer_specs import AttentionSpec


class ReferenceAttention:
    """``softmax(Q K^T / sqrt(d) + mask) V`` over one whole sequence from position 0.

    Args:
        sliding_windows: Per layer, how many of the latest tokens a token sees; ``None`` is all.
        layout: Keys and values are seen as a cache of this format would show them.
        specs: Per layer, where some share a cache, have latents, or scale or bound scores. Valid
            for one pass.
    """

    kernel_cache = None

    def __init__(
        self,
        sliding_windows: Sequence[int | None],
        layout: KVLayout | None = None,
        specs: Sequence[AttentionSpec | None] = (),
    ) -> None:
        self._windows = sliding_windows
        self._layout = layout
        self._specs = specs
        self._seen: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: keys and values

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        tokens, heads, _ = query.shape
        spec = self._specs[layer] if self._specs else None
        key, value = self._seen[layer] = self._as_read(spec, key, value)
        group = heads // key.shape[1]
        q = query.float().transpose(0, 1)  # [heads, tokens, head_dim]
        k = key.float().repeat_interleave(group, dim=1).transpose(0, 1)
        v = value.float().repeat_interleave(group, dim=1).transpose(0, 1)
        position = torch.arange(tokens, device=query.device)
        distance = position[:, None] - position[None, :]  # [queries, keys]
        hidden = distance < 0
        window = self._windows[layer]
        if window is not None:
            is_chunked = spec is not None and spec.chunked
            hidden |= distance >= (position[:, None] % window + 1 if is_chunked else window)
        head_dim = spec.key_dim if spec is not None else query.shape[-1]
        scale = head_dim**-0.5 if spec is None or spec.scale is None else spec.scale
        scores = q @ k.transpose(1, 2) * scale  # [heads, queries, keys]
        if spec is not None and spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, tokens, 1)), -1)
        weights = torch.softmax(scores, dim=-1)[..., :tokens]
        return (weights @ v).transpose(0, 1).to(query.dtype)  # [tokens, heads, value_dim]

    def _as_read(
        self, spec: AttentionSpec | None, key: Tensor | None, value: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if key is None:
            assert spec is not None and spec.shares is not None, "a layer without keys shares some"
            return self._seen[spec.shares]
        as_read = self._layout.as_read if self._layout is not None else _unchanged
        key = as_read(key)
        if value is not None:
            return key, as_read(value)
        assert spec is not None and spec.latent is not None, "a layer without values has latents"
        return key, key[..., : spec.latent.value]


def _unchanged(rows: Tensor) -> Tensor:
    return rows
