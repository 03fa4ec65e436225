"""Which attention reads and writes the KV tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import AttentionBackend
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.grouped import GroupedBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.kv_layout import KVLayout
from twostroke.model_spec.spec import ModelSpec


def attention_backend(
    spec: ModelSpec,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    layout: KVLayout,
    groups: Sequence[Sequence[int]] = (),
) -> AttentionBackend:
    """The fastest for these caches of a model's layers: all of them, or the first few.

    Args:
        groups: The indices of the layers that share a block table, where there are several.
    """
    windows = spec.sliding_windows[: len(keys)]
    if len(groups) < 2:
        return _backend(spec, keys, values, layout, windows)
    backends = []
    for layers in groups:
        own_keys, own_values = [keys[i] for i in layers], [values[i] for i in layers]
        seen = [windows[i] for i in layers]
        backends.append(_backend(spec, own_keys, own_values, layout, seen))
    return GroupedBackend(backends, groups)


def _backend(
    spec: ModelSpec,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    layout: KVLayout,
    windows: Sequence[int | None],
) -> AttentionBackend:
    attention = next(layer.attention for layer in spec.layers if layer.attention)
    if CompiledBackend.supports(keys[0], layout) and (library := load_library()) is not None:
        return CompiledBackend(keys, values, attention.heads, windows, library, layout)
    return SdpaBackend(keys, values, attention.heads, windows, layout)
