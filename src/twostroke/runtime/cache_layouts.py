"""What each layer of a model keeps of a token, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from twostroke.core.kv_formats import KVCacheDtype
from twostroke.layers.kv_layout import KVLayout, make_layout
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How one layer's cache lies in memory.

    Attributes:
        tensors: Layouts of its keys and values, or of its latents; empty where it caches nothing of
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
    """The layout of every layer of a model. Raises ConfigError as ``make_layout``."""
    attentions = [layer.attention for layer in spec.each_layer()]
    layouts = list[CacheLayout]()
    for index, attention in enumerate(attentions):
        if attention is None:
            layouts.append(CacheLayout((), index))
        elif (owner := attention.shares) is not None:
            shared = attentions[owner]
            assert owner < index and shared and layouts[owner].tensors, "it shares an earlier cache"
            assert shared.window == attention.window, "blocks are given back after one window"
            layouts.append(CacheLayout((), owner))
        else:
            tensors = [make_layout(name, model_dtype, block_size, *row) for row in _rows(attention)]
            layouts.append(CacheLayout(tuple(tensors), index))
    return layouts


def _rows(attention: AttentionSpec) -> list[tuple[int, int]]:
    """Heads and their width of what a layer caches of a token, by tensor."""
    if attention.latent is not None:
        return [(1, attention.latent.cached)]
    widths = (attention.key_dim, attention.value_dim)
    return [(attention.kv_heads, width) for width in widths]
