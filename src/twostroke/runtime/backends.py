"""Which attention reads and writes the KV tensors."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import AttentionBackend, LatentForm
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.grouped import GroupedBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.runtime.kv_tensors import KVTensors


def attention_backend(
    spec: ModelSpec, kv: KVTensors, num_layers: int | None = None
) -> AttentionBackend:
    """The fastest for the caches of a model's layers: all of them, or the first few.

    Layers that differ in heads, shapes or block table have backends of their own.
    """
    parts: dict[object, list[int]] = {}
    specs = [layer.attention for layer in spec.each_layer()][:num_layers]
    for layer, attention in enumerate(specs):
        if attention is not None:
            owner = kv.layouts[layer].owner
            kind = (
                kv.tables[layer],
                attention.heads,
                kv.layouts[owner].tensors,
                _latent(attention),
            )
            parts.setdefault(kind, []).append(layer)
    layers = list(parts.values())
    backends = [_backend(spec, kv, each) for each in layers]
    if len(backends) == 1 and len(kv.groups) == 1 and len(layers[0]) == len(specs):
        return backends[0]
    return GroupedBackend(backends, layers, [kv.tables[each[0]] for each in layers])


def _backend(spec: ModelSpec, kv: KVTensors, layers: Sequence[int]) -> AttentionBackend:
    """Of layers of one kind."""
    attention = [layer.attention for layer in spec.each_layer()][layers[0]]
    assert attention is not None, "only layers that attend have a backend"
    keys, values = [kv.keys[layer] for layer in layers], [kv.values[layer] for layer in layers]
    windows = [spec.sliding_windows[layer] for layer in layers]
    layouts, latent = kv.layouts[kv.layouts[layers[0]].owner].tensors, _latent(attention)
    is_pair = layouts == (layouts[0], layouts[0])
    if is_pair and CompiledBackend.supports(keys[0], layouts[0]):
        library = load_library()
        if library is not None:
            return CompiledBackend(keys, values, attention.heads, windows, library, layouts[0])
    return SdpaBackend(keys, values, attention.heads, windows, layouts[0], layouts[-1], latent)


def _latent(attention: AttentionSpec) -> LatentForm | None:
    if attention.latent is None:
        return None
    return LatentForm(attention.latent.value, attention.key_dim**-0.5)
