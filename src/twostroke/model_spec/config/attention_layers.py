"""Softmax attention as ``config.json`` describes it: heads, windows, biases; grouped or latent."""

from __future__ import annotations

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.families import FAMILIES, Family
from twostroke.model_spec.config.rotation import (
    is_rotated,
    read_layer_rope,
    read_rope,
    read_rotary_fraction,
    read_score_factor,
)
from twostroke.model_spec.config.scales import read_attention_scale
from twostroke.model_spec.config_fields import CHECK, ConfigFields
from twostroke.model_spec.factors import TemperatureSpec
from twostroke.model_spec.layer_specs import (
    AttentionSpec,
    LatentSpec,
    Linears,
    LinearSpec,
    Part,
    whole,
)
from twostroke.model_spec.number_formats import INDEX_FORMAT


def read_attention(
    fields: ConfigFields, model_type: str, hidden: int, index: int, kind: str | None
) -> AttentionSpec:
    """The attention of layer ``index``; ``kind`` as in ``layer_types``. Raises ModelLoadError."""
    family = FAMILIES[model_type]
    if family.latent:
        return _latent(fields, family, hidden)
    heads, kv_heads = _heads(fields, family)
    older = fields.optional("attention_head_dim") if model_type == "nemotron_h" else None
    head_dim = fields.integer("head_dim", older or family.head_dim or hidden // heads)
    query, kv = heads * head_dim, kv_heads * head_dim
    qkv_bias, output_bias = _bias(fields, family.qkv_bias), _bias(fields, family.output_bias)
    gated = 2 if family.recurrent == "delta" else 1  # a gate of the query's size comes with it
    parts = (Part(gated * query, heads), Part(kv, kv_heads), Part(kv, kv_heads))
    qk_norm = family.qk_norm or (model_type == "glm4_moe" and fields.flag("use_qk_norm"))
    norms = query + kv if family.whole_norm else 2 * head_dim * qk_norm
    window = window_of(fields, family, index, kind)
    rope = read_layer_rope(fields, family, index, window)
    sinks = heads if model_type == "gpt_oss" else 0  # one per head
    is_llama4 = model_type == "llama4_text"
    return AttentionSpec(
        heads,
        kv_heads,
        head_dim,
        head_dim,
        window,
        linears=(
            LinearSpec("qkv", parts, hidden, bias=qkv_bias),
            LinearSpec("attention_output", whole(hidden), query, heads, bias=output_bias),
        ),
        other_parameters=norms + sinks,
        qk_norm=qk_norm,
        whole_norm=family.whole_norm,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        soft_cap=fields.optional_number("attn_logit_softcapping"),
        scale=read_attention_scale(fields, family, head_dim),
        gated=gated == 2,
        sinks=bool(sinks),
        rope=rope,
        rotary_fraction=read_rotary_fraction(fields, rope, window),
        interleaved=family.interleaved,
        unit_norm=is_llama4 and rope is not None and fields.flag("use_qk_norm", True),
        chunked=kind == "chunked_attention" and window is not None,
        temperature=_temperature(fields) if is_llama4 and rope is None else None,
    )


def _temperature(fields: ConfigFields) -> TemperatureSpec | None:
    if not fields.flag("attn_temperature_tuning", True):
        return None
    every, scale = fields.integer("floor_scale", 8192), fields.number("attn_scale", 0.1)
    return TemperatureSpec(every, scale)


def _heads(fields: ConfigFields, family: Family) -> tuple[int, int]:
    """(query heads, key-value heads). As in transformers, an explicit null is one per query head.

    Raises:
        ModelLoadError: The first are no multiple of the second.
    """
    heads = fields.integer("num_attention_heads")
    default = family.kv_heads if "num_key_value_heads" not in fields.raw else 0
    kv_heads = fields.integer("num_key_value_heads", default or heads)
    if heads % kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads ({heads}) is no multiple of num_key_value_heads"
            f" ({kv_heads})",
            hint=CHECK,
        )
    return heads, kv_heads


def window_of(fields: ConfigFields, family: Family, index: int, kind: str | None) -> int | None:
    """How many of the latest tokens a token of layer ``index`` sees; ``None`` is all."""
    if kind == "chunked_attention":  # at most: a chunk begins empty
        return fields.optional("attention_chunk_size")
    # As transformers: an absent key is the family's default, null and 0 are none.
    default = family.window if "sliding_window" not in fields.raw else None
    window = fields.integer("sliding_window", default or 0, minimum=0) or None
    rule = family.windows
    if window is None or rule == "none":
        return None
    if rule == "all":
        return window
    if rule in ("upper", "unrotated") and not fields.flag("use_sliding_window"):
        return None
    if kind is not None:
        return window if kind == "sliding_attention" else None
    if rule == "even":
        return window if index % 2 == 0 else None
    if rule == "pattern":
        every = fields.integer("sliding_window_pattern", family.pattern)
        return window if (index + 1) % every else None
    if rule == "unrotated":
        return None if is_rotated(fields, index) else window
    above = index >= fields.integer("max_window_layers", 28, minimum=0)
    return window if fields.flag("use_sliding_window") and above else None


def _bias(fields: ConfigFields, fixed: bool | None) -> bool:
    return fields.flag("attention_bias") if fixed is None else fixed


def _latent(fields: ConfigFields, family: Family, hidden: int) -> AttentionSpec:
    """DeepSeek-V2 (arXiv:2405.04434), sections 2.1 and 3.1.2."""
    heads, _ = _heads(fields, family)
    rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    bias = fields.flag("attention_bias")
    queries = Part(heads * (plain + rope), heads)
    other = rank
    query_rank = fields.optional("q_lora_rank")
    if query_rank:
        down = (*whole(query_rank), *whole(rank + rope))
        linears = [
            LinearSpec("query_kv_down", down, hidden, bias=bias),
            LinearSpec("query_up", (queries,), query_rank),
        ]
        other += query_rank
    else:
        linears = [LinearSpec("query_kv_down", (queries, *whole(rank + rope)), hidden)]
    linears += [
        LinearSpec("kv_up", (Part(heads * (plain + value), heads),), rank),
        LinearSpec("attention_output", whole(hidden), heads * value, heads, bias=bias),
    ]
    index, of_index = _index(fields, hidden, query_rank or hidden)
    return AttentionSpec(
        heads,
        heads,
        plain + rope,
        value,
        None,
        LatentSpec(rank + rope, rank, query_rank),
        linears=(*linears, *of_index),
        other_parameters=other + (index.other_parameters if index else 0),
        index=index,
        chosen=fields.optional("index_topk"),
        output_bias=bias,
        scale=(plain + rope) ** -0.5 * read_score_factor(fields),
        rope=read_rope(fields, family),
        rotary_fraction=rope / (plain + rope),
        interleaved=fields.flag("rope_interleave", True),
    )


def _index(
    fields: ConfigFields, hidden: int, query_rank: int
) -> tuple[AttentionSpec | None, Linears]:
    """What finds the tokens of sparse attention, and its products.

    The lightning indexer of DeepSeek-V3.2 (arXiv:2512.02556, section 2.1). Its keys are kept in
    fp8, whatever the format of the cache, and normed with a bias.
    """
    if fields.optional("index_topk") is None:
        return None, ()
    heads, size = fields.integer("index_n_heads"), fields.integer("index_head_dim")
    linears = (
        LinearSpec("index_query", whole(heads * size), query_rank),
        LinearSpec("index_key", whole(size), hidden),
        LinearSpec("index_weights", whole(heads), hidden, quantised=False),
    )
    index = AttentionSpec(heads, 1, size, 0, other_parameters=2 * size, index_format=INDEX_FORMAT)
    return index, linears
