"""What each layer of a model keeps of a token, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twostroke.core.config import KVCacheDtype
from twostroke.layers.kv_layout import KVLayout, make_layout
from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Of one layer.

    Attributes:
        tensors: Of its keys and its values; of its latents alone; empty where it caches nothing of
            its own.
        owner: The layer whose tensors it reads: itself, or the one whose cache it shares.
    """

    tensors: tuple[KVLayout, ...]
    owner: int

    @property
    def block_bytes(self) -> int:
        return sum(layout_bytes(layout) for layout in self.tensors)


def layout_bytes(layout: KVLayout) -> int:
    """Bytes of one block of a tensor."""
    return torch.Size(layout.block_shape).numel() * layout.dtype.itemsize


def cache_layouts(
    spec: ModelSpec, name: KVCacheDtype, model_dtype: torch.dtype, block_size: int
) -> list[CacheLayout]:
    """Of every layer of a model. Raises ConfigError as ``make_layout``."""
    layouts = []
    for index, layer in enumerate(spec.each_layer()):
        attention = layer.attention
        if attention is None or attention.shares is not None:
            owner = index if attention is None or attention.shares is None else attention.shares
            layouts.append(CacheLayout((), owner))
            continue
        rows = [(attention.kv_heads, attention.key_dim), (attention.kv_heads, attention.value_dim)]
        if attention.latent is not None:
            rows = [(1, attention.latent.cached)]
        tensors = [make_layout(name, model_dtype, block_size, *row) for row in rows]
        layouts.append(CacheLayout(tuple(tensors), index))
    return layouts
