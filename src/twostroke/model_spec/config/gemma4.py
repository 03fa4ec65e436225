"""What Gemma 4's layers have that no other family's have, as ``config.json`` describes it.

Sizes of their own, keys that serve as values, caches that others fill, and embeddings of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import CHECK, ConfigFields, short
from twostroke.model_spec.layer_specs import (
    AttentionSpec,
    LayerInputSpec,
    LayerSpec,
    LinearSpec,
    Part,
    whole,
)

_OWN = ("head_dim", "num_key_value_heads")  # what a layer may have of its own


def fields_of_layer(fields: ConfigFields, kinds: Sequence[str | None], index: int) -> ConfigFields:
    """The fields as layer ``index`` reads them. Raises ModelLoadError."""
    changes = _stated_sizes(fields, index)
    if changes is None:
        changes = {}
        if kinds[index] == "full_attention":
            changes["head_dim"] = fields.integer("global_head_dim", 512)
            kv_heads = fields.optional("num_global_key_value_heads")
            if kv_heads and fields.flag("attention_k_eq_v"):
                changes["num_key_value_heads"] = kv_heads
    if fields.flag("use_double_wide_mlp") and index >= _first_shared(fields, kinds) > 0:
        changes["intermediate_size"] = 2 * fields.integer("intermediate_size")
    return ConfigFields({**fields.raw, **changes})


def read_layer_table(fields: ConfigFields) -> tuple[int, int]:
    """(rows of the embedding of all layers, elements of each layer's part); zeros without one."""
    size = _input_size(fields)
    return (fields.integer("vocab_size_per_layer_input", 262_144) if size else 0), size


def finish_layer(
    fields: ConfigFields, kinds: Sequence[str | None], index: int, hidden: int, layer: LayerSpec
) -> LayerSpec:
    """The layer with what only this family has. Raises ModelLoadError."""
    if fields.raw.get("use_bidirectional_attention") == "all":
        raise ModelLoadError(
            "config.json: use_bidirectional_attention: every token sees all others, which is not"
            " supported",
            hint="models that generate text see earlier tokens only",
        )
    assert layer.attention is not None
    attention = _attention(fields, kinds, index, hidden, layer.attention)
    norms, inputs = layer.norm_parameters, None
    if layer.experts is not None:
        # Three more norms, the router's weights of its inputs, and of what it chose.
        norms += 4 * hidden + layer.experts.count
    if size := _input_size(fields):
        norms += hidden
        linears = (
            LinearSpec("layer_projection", whole(size), hidden),
            LinearSpec("layer_input_gate", whole(size), hidden),
            LinearSpec("layer_input_output", whole(hidden), size),
        )
        activation = str(fields.raw.get("hidden_activation", "gelu_pytorch_tanh"))
        inputs = LayerInputSpec(size, activation, linears)
    return replace(layer, norm_parameters=norms, attention=attention, inputs=inputs)


def _attention(
    fields: ConfigFields,
    kinds: Sequence[str | None],
    index: int,
    hidden: int,
    attention: AttentionSpec,
) -> AttentionSpec:
    first = _first_shared(fields, kinds)
    query = Part(attention.heads * attention.key_dim, attention.heads)
    key = Part(attention.kv_heads * attention.key_dim, attention.kv_heads)
    if index >= first:
        if kinds[index] not in kinds[:first]:
            raise ModelLoadError(
                f"config.json: num_kv_shared_layers: no layer before layer {first} is of the kind"
                f" {short(kinds[index])} whose cache layer {index} would share",
                hint=CHECK,
            )
        owner = max(at for at in range(first) if kinds[at] == kinds[index])
        parts, other, is_key = [query], attention.key_dim, False
        attention = replace(attention, shares=owner)
    else:
        is_key = fields.flag("attention_k_eq_v") and kinds[index] == "full_attention"
        parts = [query, key] if is_key else [query, key, key]
        other = attention.other_parameters
    qkv = LinearSpec("qkv", tuple(parts), hidden, bias=attention.qkv_bias)
    linears = (qkv, *attention.linears[1:])
    return replace(
        attention,
        linears=linears,
        other_parameters=other,
        value_norm=index < first,
        keys_as_values=is_key,
    )


def _first_shared(fields: ConfigFields, kinds: Sequence[str | None]) -> int:
    """The first layer that reads a cache which another one fills."""
    shared = fields.integer("num_kv_shared_layers", 0, minimum=0, maximum=len(kinds))
    return len(kinds) - shared


def _input_size(fields: ConfigFields) -> int:
    return fields.integer("hidden_size_per_layer_input", 256, minimum=0)


def _stated_sizes(fields: ConfigFields, index: int) -> dict[str, object] | None:
    """What newer files state layer by layer; ``None`` where they state none of it."""
    if fields.raw.get("per_layer_config") is None:
        return None
    own = fields.mapping("per_layer_config").get(str(index), {})
    other = [name for name in own if name not in _OWN] if isinstance(own, Mapping) else [own]
    if other:
        raise ModelLoadError(
            f"config.json: per_layer_config of layer {index} has {short(other[0])}",
            hint="known: " + ", ".join(_OWN),
        )
    return dict(own)
