"""DeepSeek's models, whose GGUF files describe attention by what is cached of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import Floats, derive
from twostroke.checkpoints.gguf.families.expert_routing import (
    SIGMOID,
    SOFTMAX,
    read_gating,
    read_weighting,
)
from twostroke.checkpoints.gguf.metadata import HINT, Metadata
from twostroke.core.errors import ModelLoadError

# Files of GLM-4.7-Flash from before that key: llama.cpp knows them by layers and vocabulary.
_OLDER_SIGMOID = ({47, 48}, 154_880)


def read_latent_fields(metadata: Metadata, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says of attention and experts.

    Args:
        name: That of the architecture.
        config: What was read before: layers, vocabulary, heads, and what stretches the rotation.

    Raises:
        ModelLoadError: A key is missing, or contradicts others.
    """
    routing = _routing(metadata, name, config)
    fields = {**_sizes(metadata, name, config["num_attention_heads"]), **routing}
    weight = 10 * metadata.number(f"{name}.rope.scaling.yarn_log_multiplier", 0.0)
    scaling = config.get("rope_scaling") or {}
    if weight and scaling.get("rope_type") == "yarn":  # files hold one weight for both of them
        fields["rope_scaling"] = {**scaling, "mscale": weight, "mscale_all_dim": weight}
    return fields


def _sizes(metadata: Metadata, name: str, heads: int) -> dict[str, Any]:
    attention = f"{name}.attention."
    rank = metadata.integer(f"{attention}kv_lora_rank")
    rotated = metadata.integer(f"{name}.rope.dimension_count")
    key, value = (metadata.integer(f"{attention}{what}_length") for what in ("key", "value"))
    kv_heads = heads
    if f"{attention}key_length_mla" in metadata:  # the others are those of what is cached
        _expect(metadata, f"{attention}key_length", key, rank + rotated)
        _expect(metadata, f"{attention}value_length", value, rank)
        key = metadata.integer(f"{attention}key_length_mla")
        value = metadata.integer(f"{attention}value_length_mla")
        kv_heads = 1
    stated = metadata.integer(f"{attention}head_count_kv", kv_heads)
    _expect(metadata, f"{attention}head_count_kv", stated, kv_heads)
    if not 0 < rotated < key:
        raise metadata.refusal(f"{name}.rope.dimension_count", f"is {rotated} of {key}")
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }


def _expect(metadata: Metadata, key: str, stated: int, expected: int) -> None:
    if stated != expected:
        raise metadata.refusal(key, f"is {stated}, and {expected} by the other sizes")


def _routing(metadata: Metadata, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """How tokens find their experts, by which V2 and V3 differ."""
    layers, vocabulary = _OLDER_SIGMOID
    is_older = config["num_hidden_layers"] in layers and config["vocab_size"] == vocabulary
    gating = read_gating(metadata, name, SIGMOID if is_older else SOFTMAX)
    weighting = read_weighting(metadata, name)
    if gating == SIGMOID:
        return {"model_type": "deepseek_v3", **weighting}
    if weighting["norm_topk_prob"]:
        raise metadata.refusal(f"{name}.expert_weights_norm", "is not supported with softmax")
    grouped = "group_limited_greedy" if weighting["n_group"] > 1 else "greedy"
    return {"model_type": "deepseek_v2", "topk_method": grouped, **weighting}


def join_keys_and_values(
    name: str, keys: StoredTensor, values: StoredTensor, config: Mapping[str, Any]
) -> StoredTensor:
    """Join what makes keys and values of latents, ``[heads x (key + value), rank]``.

    Args:
        name: What the layer's tensors begin with, for messages.
        keys: ``[heads, rank, key]``, as they are moved to the queries.
        values: ``[heads, value, rank]``.

    Raises:
        ModelLoadError: One has another shape.
    """
    heads, rank = config["num_attention_heads"], config["kv_lora_rank"]
    plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
    shapes = {"attn_k_b": (heads, rank, plain), "attn_v_b": (heads, value, rank)}
    for (own, shape), tensor in zip(shapes.items(), (keys, values), strict=True):
        if tensor.shape != shape:
            raise ModelLoadError(
                f"{tensor.path}: {name}{own}.weight has shape {tensor.shape}, expected {shape}",
                hint=HINT,
            )
    return derive((keys, values), (heads * (plain + value), rank), partial(_join, rank))


def _join(rank: int, sources: Sequence[Floats]) -> Floats:
    keys, values = sources
    return np.concatenate((keys.swapaxes(1, 2), values), axis=1).reshape(-1, rank)
