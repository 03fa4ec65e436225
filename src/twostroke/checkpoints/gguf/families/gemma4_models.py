"""Gemma 4, whose layers differ in their heads, in how they rotate, and in their MLPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.layer_lists import read_each
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.gguf.rotation_factors import ROPE_FACTORS, read_factors

_STILL = 1e20  # what a pair's angle is divided by, at least, where it stands still


def read_gemma4_fields(
    metadata: Metadata, name: str, layers: int, tensors: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """What ``config.json`` says of layers.

    Args:
        name: That of the architecture.
        tensors: By their names in the file.

    Raises:
        ModelLoadError: A key is missing, or contradicts others.
    """
    pattern = f"{name}.attention.sliding_window_pattern"
    is_local = metadata.flags(pattern)
    if len(is_local) != layers or is_local[-1]:
        raise metadata.refusal(pattern, f"must have {layers} entries, the last of them false")
    heads = metadata.integer(f"{name}.attention.head_count")
    sizes = {local: _head_size(metadata, name, "_swa" if local else "") for local in (True, False)}
    kv_heads = read_each(metadata, f"{name}.attention.head_count_kv", layers, layers, heads)
    input_size = metadata.integer(f"{name}.embedding_length_per_layer_input", 0)
    table = tensors.get("per_layer_token_embd.weight")
    values = [f"blk.{index}.attn_v.weight" in tensors for index in range(layers)]
    shared = metadata.integer(f"{name}.attention.shared_kv_layers", 0)
    own_caches = range(max(layers - shared, 0))
    return {
        **_mlp_sizes(metadata, name, layers, shared),
        "num_attention_heads": heads,
        "per_layer_config": {
            str(index): {"head_dim": sizes[local], "num_key_value_heads": kv_heads[index]}
            for index, local in enumerate(is_local)
        },
        "attention_k_eq_v": any(not is_local[at] and not values[at] for at in own_caches),
        "hidden_size_per_layer_input": input_size,
        "vocab_size_per_layer_input": table.shape[0] if table and input_size else 1,
        "rope_parameters": _rotations(metadata, name, sizes[False], tensors),
    }


def _head_size(metadata: Metadata, name: str, ending: str) -> int:
    """Elements of a head, all of which may rotate; ``ending`` is that of keys of local layers."""
    size = metadata.integer(f"{name}.attention.key_length{ending}")
    same = (f"attention.value_length{ending}", f"rope.dimension_count{ending}")
    for key in same:
        if metadata.integer(f"{name}.{key}", size) != size:
            raise metadata.refusal(f"{name}.{key}", f"is another than {size} of keys")
    if size < 1:
        raise metadata.refusal(f"{name}.attention.key_length{ending}", f"is {size}")
    return size


def _mlp_sizes(metadata: Metadata, name: str, layers: int, shared: int) -> dict[str, Any]:
    """One size for all layers, or twice that where layers read the caches of others."""
    key = f"{name}.feed_forward_length"
    sizes = read_each(metadata, key, layers, layers)
    own = max(layers - shared, 0)
    doubled = [sizes[0]] * own + [2 * sizes[0]] * (layers - own)
    if sizes not in (doubled, [sizes[0]] * layers):
        raise metadata.refusal(key, "must be one size, or twice that in layers that share a cache")
    return {"intermediate_size": sizes[0], "use_double_wide_mlp": sizes[-1] != sizes[0]}


def _rotations(
    metadata: Metadata, name: str, head_size: int, tensors: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Global layers turn the first pairs of a head alone, by the factors of all."""
    if ROPE_FACTORS not in tensors:
        raise metadata.refusal(ROPE_FACTORS, "is missing")
    factors = read_factors(tensors[ROPE_FACTORS], ROPE_FACTORS, head_size)
    turning = _count_turning(factors)
    if turning is None:
        raise metadata.refusal(ROPE_FACTORS, f"must be 1 first, then above {_STILL:g}")
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": metadata.number(f"{name}.rope.freq_base", 10_000.0),
            # Half an element more, so that no rounding makes it one pair less.
            "partial_rotary_factor": (2 * turning + 0.5) / head_size,
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": metadata.number(f"{name}.rope.freq_base_swa"),
        },
    }


def _count_turning(factors: Sequence[float]) -> int | None:
    """How many pairs turn, as they would with no factors; ``None``: others than the first do."""
    turning = sum(factor == 1.0 for factor in factors)
    is_split = all(factor == 1.0 for factor in factors[:turning])
    stand = all(factor > _STILL for factor in factors[turning:])
    return turning if is_split and stand else None
