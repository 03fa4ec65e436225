"""Which attention reads and writes the KV tensors."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.errors import ConfigError
from twostroke.kernels.library import load_library
from twostroke.layers.attention.base import AttentionBackend, ScoreForm
from twostroke.layers.attention.compiled import CompiledBackend
from twostroke.layers.attention.grouped import GroupedBackend
from twostroke.layers.attention.sdpa import SdpaBackend
from twostroke.layers.gpu.load import load_operators
from twostroke.layers.kv_layout import ScaledLayout
from twostroke.model_spec.layer_specs import AttentionSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.runtime.kv_tensors import KVTensors


def attention_backend(
    spec: ModelSpec, kv: KVTensors, num_layers: int | None = None
) -> AttentionBackend:
    """The fastest for the caches of a model's layers: all of them, or the first few.

    Layers that differ in heads, shapes, block table or the distance between their blocks have
    backends of their own.
    """
    attentions = [layer.attention for layer in spec.each_layer()][:num_layers]
    kinds: dict[object, tuple[AttentionSpec, list[int]]] = {}
    for layer, attention in enumerate(attentions):
        if attention is not None:
            layouts = kv.layouts[kv.layouts[layer].owner].tensors
            strides = kv.keys[layer].stride(), kv.values[layer].stride()
            kind = (kv.tables[layer], attention.heads, layouts, strides, _form(attention))
            kinds.setdefault(kind, (attention, []))[1].append(layer)
    members = [layers for _, layers in kinds.values()]
    backends = [_backend(spec, kv, *kind) for kind in kinds.values()]
    if members == [[*range(len(attentions))]] and len(kv.groups) == 1:
        return backends[0]
    return GroupedBackend(backends, members, [kv.tables[layers[0]] for layers in members])


def _backend(
    spec: ModelSpec, kv: KVTensors, attention: AttentionSpec, layers: Sequence[int]
) -> AttentionBackend:
    """The backend for layers of one kind.

    Raises:
        ConfigError: It cannot read their format.
    """
    keys, values = [kv.keys[layer] for layer in layers], [kv.values[layer] for layer in layers]
    windows = [spec.sliding_windows[layer] for layer in layers]
    layouts = kv.layouts[kv.layouts[layers[0]].owner].tensors
    form = _form(attention)
    supported = CompiledBackend.supports(keys[0], layouts[0], layouts[-1], form)
    library = load_library() if supported else None
    if library is not None:
        return CompiledBackend(
            keys,
            values,
            num_heads=attention.heads,
            sliding_windows=windows,
            library=library,
            layout=layouts[0],
            value_layout=layouts[-1],
            form=form,
        )
    operators = load_operators(kv.device)
    if operators is not None:
        from twostroke.layers.gpu.paged_attention import PagedBackend

        if PagedBackend.supports(form, layouts[0], operators):
            return PagedBackend(
                keys, values, attention.heads, windows, operators, layouts[0], layouts[-1], form
            )
    if isinstance(layouts[0], ScaledLayout) and not keys[0].is_contiguous():
        # It reads whole blocks, and what were numbers of one layer might be infinite as scales.
        raise ConfigError(
            f"--kv-cache-dtype {layouts[0].name} does not work with this model here: its layers"
            " have keys and values of different shapes, which only the compiled attention reads,"
            " and in int8 that of a GPU, in blocks of a multiple of 4 tokens",
            hint="use --kv-cache-dtype auto, or fp8",
        )
    return SdpaBackend(
        keys,
        values,
        num_heads=attention.heads,
        sliding_windows=windows,
        layout=layouts[0],
        value_layout=layouts[-1],
        form=form,
    )


def _form(attention: AttentionSpec) -> ScoreForm:
    scale = attention.key_dim**-0.5 if attention.scale is None else attention.scale
    latent_values = None if attention.latent is None else attention.latent.value
    return ScoreForm(scale, attention.soft_cap, latent_values, attention.sinks, attention.chunked)
