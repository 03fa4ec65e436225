"""What a GGUF file's metadata says, as ``config.json`` and ``generation_config.json`` would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES, MIXTRAL, Architecture
from twostroke.checkpoints.gguf.delta_models import count_drafting_layers, read_delta_fields
from twostroke.checkpoints.gguf.latent_models import read_latent_fields
from twostroke.checkpoints.gguf.mamba_models import read_mamba_fields
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.gguf.rotation_factors import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    read_factors,
    read_llama3_scaling,
)
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import short

_DTYPES = {"F32": "float32", "F16": "float16"}
# Of metadata that changes nothing here; ``vocab_size`` is what the table of embeddings has.
_NEEDLESS = ("vocab_size", "rope.scaling.finetuned", "tensor_data_layout", "pooling_type")
_UNSCALED = ("rope.scaling.original_context_length",)  # where nothing is scaled
# Recommended sampling, by the field of ``generation_config.json``.
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_SHORTEST = 1  # elements of a head


def architecture_of(metadata: Metadata) -> Architecture:
    """The configuration of a file's model. Raises ModelLoadError where it is not supported."""
    name = metadata.text("general.architecture")
    if metadata.text("general.type", "model") != "model":
        raise metadata.refusal("general.type", f"is {short(metadata.text('general.type'))}")
    if name not in ARCHITECTURES:
        raise ModelLoadError(
            f"{metadata.path}: unknown architecture: general.architecture is {short(name)}",
            hint="supported: " + ", ".join(ARCHITECTURES),
        )
    if name == "llama" and metadata.integer("llama.expert_count", 0):
        return MIXTRAL
    return ARCHITECTURES[name]


def read_config(metadata: Metadata, tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The fields of ``config.json``.

    Args:
        tensors: By their names in the file.

    Raises:
        ModelLoadError: It names the key that is missing, malformed or not supported.
    """
    own, name = architecture_of(metadata), metadata.text("general.architecture")
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        hint = "give the file of a whole model, not an adapter or a projector"
        raise ModelLoadError(f"{metadata.path} has no token_embd.weight", hint=hint)
    hidden = metadata.integer(f"{name}.embedding_length")
    heads = metadata.integer(f"{name}.attention.head_count")
    layers = metadata.integer(f"{name}.block_count")
    drafting = count_drafting_layers(metadata, name, layers) if own.delta else 0
    layers -= drafting
    if heads < 1:
        raise metadata.refusal(f"{name}.attention.head_count", f"is {heads}")
    config: dict[str, Any] = {
        "model_type": own.model_type,
        "torch_dtype": _dtype(tensors),
        "vocab_size": table.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **_key_value_heads(metadata, name, own, heads, layers),
        "intermediate_size": _feed_forward_length(metadata, name, own),
        "max_position_embeddings": metadata.integer(f"{name}.context_length"),
        own.norm_eps[0]: metadata.number(f"{name}.{own.norm_eps[1]}"),
        "tie_word_embeddings": "output.weight" not in tensors,
        **own.stated,
        "head_dim": _head_size(metadata, name, own, hidden // heads),
    }
    config |= _rotation(metadata, name, tensors, config["head_dim"], own)
    for fields, read in ((own.integers, metadata.integer), (own.numbers, metadata.number)):
        for target, key in fields.items():
            if f"{name}.{key}" in metadata:
                config[target] = read(f"{name}.{key}")
    if own.latent:
        config |= read_latent_fields(metadata, name, heads, config)
    if own.delta:
        config |= {**read_delta_fields(metadata, name, layers), "drafting_layers": drafting}
    if own.mamba:
        config |= read_mamba_fields(metadata, name, hidden, tensors, layers)
    if own.biases:
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    if own.large_layers:
        is_large = layers == own.large_layers
        config["query_pre_attn_scalar"] = hidden // heads if is_large else config["head_dim"]
    if own.model_type == "olmo2" and config.get("sliding_window"):
        config["model_type"] = "olmo3"
    _read_window_pattern(metadata, name, config)
    _refuse_others(metadata, name)
    return config


def _feed_forward_length(metadata: Metadata, name: str, own: Architecture) -> int:
    """That of an MLP, which Qwen3.5's files lack where all layers have experts."""
    key, of_experts = f"{name}.feed_forward_length", f"{name}.expert_feed_forward_length"
    if own.delta and key not in metadata and of_experts in metadata:
        return metadata.integer(of_experts)
    return metadata.integer(key)


def _key_value_heads(
    metadata: Metadata, name: str, own: Architecture, heads: int, layers: int
) -> dict[str, Any]:
    """How many there are, and which layers have them where the file has a list."""
    key = f"{name}.attention.head_count_kv"
    if not own.unattending or not isinstance(metadata.values.get(key), list):
        return {"num_key_value_heads": metadata.integer(key, heads)}
    counts = metadata.integers(key)
    if len(counts) != layers:
        raise metadata.refusal(key, f"has {len(counts)} entries for {layers} layers")
    stated = sorted({count for count in counts if count})
    if len(stated) > 1:
        raise metadata.refusal(key, f"states {short(stated)}: layers that differ are not supported")
    kinds = {True: "full_attention", False: own.unattending}
    return {
        "num_key_value_heads": stated[0] if stated else heads,
        "layer_types": [kinds[count > 0] for count in counts],
    }


def _read_window_pattern(metadata: Metadata, name: str, config: dict[str, Any]) -> None:
    """Which layers see a window only: every layer, or one in how many does not."""
    key = f"{name}.attention.sliding_window_pattern"
    if type(metadata.values.get(key)) is int:
        config["sliding_window_pattern"] = metadata.integer(key)
    elif key in metadata:
        kinds = {True: "sliding_attention", False: "full_attention"}
        config["layer_types"] = [kinds[is_local] for is_local in metadata.flags(key)]


def read_generation_defaults(metadata: Metadata, end_tokens: list[int]) -> dict[str, Any]:
    """The fields of ``generation_config.json``."""
    defaults: dict[str, Any] = {"eos_token_id": end_tokens} if end_tokens else {}
    for name, key in _SAMPLING.items():
        if f"general.sampling.{key}" in metadata:
            read = metadata.integer if name == "top_k" else metadata.number
            defaults[name] = read(f"general.sampling.{key}")
    return defaults


def _dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """The precision to compute in: that of most bytes of the matrices, else bfloat16."""
    nbytes = Counter[str]()
    for tensor in tensors.values():
        if len(tensor.shape) > 1:
            nbytes[tensor.format] += tensor.nbytes
    return _DTYPES.get(nbytes.most_common(1)[0][0], "bfloat16")


def _head_size(metadata: Metadata, name: str, own: Architecture, implied: int) -> int:
    """Elements of a head; of latent attention those that are rotated."""
    key = f"{name}.{'rope.dimension_count' if own.latent else 'attention.key_length'}"
    size = metadata.integer(key, None if own.latent else implied)
    values = f"{name}.attention.value_length"
    if not own.latent and metadata.integer(values, size) != size:
        raise metadata.refusal(values, f"is another than {size} of keys")
    if size < _SHORTEST:
        raise metadata.refusal(key, f"is {size}")
    return size


def _rotation(
    metadata: Metadata,
    name: str,
    tensors: Mapping[str, StoredTensor],
    head_size: int,
    own: Architecture,
) -> dict[str, Any]:
    """Angles, and what stretches them."""
    theta = metadata.number(f"{name}.rope.freq_base", 10_000.0)
    config: dict[str, Any] = {"rope_theta": theta}
    rotated = metadata.integer(f"{name}.rope.dimension_count", head_size)
    config["partial_rotary_factor"] = rotated / head_size
    local = "rope.freq_base_swa"
    if local not in own.numbers.values() and metadata.number(f"{name}.{local}", theta) != theta:
        raise metadata.refusal(f"{name}.{local}", "is not supported in this architecture")
    kind = metadata.text(f"{name}.rope.scaling.type", "none")
    if own.longrope and (LONG_FACTORS in tensors or SHORT_FACTORS in tensors):
        config |= _longrope(metadata, f"{name}.rope.scaling.", tensors, rotated, kind)
    elif ROPE_FACTORS in tensors:
        config["rope_scaling"] = read_llama3_scaling(tensors[ROPE_FACTORS], theta, rotated)
    elif kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": metadata.number(f"{name}.rope.scaling.factor")}
        if kind == "yarn":
            scaling |= _yarn(metadata, f"{name}.rope.scaling.", own.truncated)
        config["rope_scaling"] = scaling
    elif kind != "none":
        raise metadata.refusal(f"{name}.rope.scaling.type", f"is {short(kind)}: not supported")
    return config


def _longrope(
    metadata: Metadata,
    prefix: str,
    tensors: Mapping[str, StoredTensor],
    rotated: int,
    kind: str,
) -> dict[str, Any]:
    """Phi-3's factors, and what the file says that scores grow by."""
    if kind not in ("none", "longrope"):
        raise metadata.refusal(f"{prefix}type", f"is {short(kind)}, and there are factors, too")
    both = {"long_factor": LONG_FACTORS, "short_factor": SHORT_FACTORS}
    scaling: dict[str, Any] = {"rope_type": "longrope"}
    for field, tensor in both.items():
        if tensor not in tensors:
            raise metadata.refusal(tensor, "is missing, and its counterpart is there")
        scaling[field] = read_factors(tensors[tensor], tensor, rotated)
    scaling["attention_factor"] = metadata.number(f"{prefix}attn_factor", 1.0)
    length = metadata.integer(f"{prefix}original_context_length")
    return {"original_max_position_embeddings": length, "rope_scaling": scaling}


def _yarn(metadata: Metadata, prefix: str, truncated: bool) -> dict[str, Any]:
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if metadata.number(prefix + key, 1.0) != 1.0:
            raise metadata.refusal(prefix + key, "other than 1 is not supported")
    length = metadata.integer(f"{prefix}original_context_length")
    return {
        "original_max_position_embeddings": length,
        "beta_fast": metadata.number(f"{prefix}yarn_beta_fast", 32.0),
        "beta_slow": metadata.number(f"{prefix}yarn_beta_slow", 1.0),
        "truncate": truncated,
    }


def _refuse_others(metadata: Metadata, name: str) -> None:
    """Raise for a key of the model that was not asked for: it might change what it computes."""
    for key in metadata.values:
        is_own = key.startswith(f"{name}.") and key not in metadata.asked
        if is_own and key.removeprefix(f"{name}.") not in (*_NEEDLESS, *_UNSCALED):
            raise metadata.refusal(key, "is not supported in this architecture")
