"""What a GGUF file's metadata says, as ``config.json`` and ``generation_config.json`` would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.architecture import Architecture
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES, MIXTRAL
from twostroke.checkpoints.gguf.families.delta_models import read_delta_fields
from twostroke.checkpoints.gguf.families.expert_routing import read_sigmoid_routing
from twostroke.checkpoints.gguf.families.gemma4_models import read_gemma4_fields
from twostroke.checkpoints.gguf.families.latent_models import read_latent_fields
from twostroke.checkpoints.gguf.families.mamba_models import read_mamba_fields
from twostroke.checkpoints.gguf.hybrid_architectures import BAMBA
from twostroke.checkpoints.gguf.layer_lists import read_layer_sizes
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
_OF_NONE = ("attention.head_count", "feed_forward_length")  # 0 where no layer attends
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
_MOST_LAYERS = 10_000  # no model has as many, and fewer take no time


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
    if name == "granitehybrid" and f"{name}.expert_shared_feed_forward_length" not in metadata:
        return BAMBA
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
    layers, drafting = _count_layers(metadata, name)
    config: dict[str, Any] = {
        "model_type": own.model_type,
        "torch_dtype": _dtype(tensors),
        "vocab_size": table.shape[0],
        "hidden_size": metadata.integer(f"{name}.embedding_length"),
        "num_hidden_layers": layers,
        "drafting_layers": drafting,
        "max_position_embeddings": metadata.integer(f"{name}.context_length"),
        own.norm_eps[0]: _norm_eps(metadata, name, own),
        "tie_word_embeddings": "output.weight" not in tensors,
        **own.stated,
    }
    for fields, read in ((own.integers, metadata.integer), (own.numbers, metadata.number)):
        for target, key in fields.items():
            if f"{name}.{key}" in metadata:
                config[target] = read(f"{name}.{key}")
    for target, tensor in own.flag_tensors.items():
        config[target] = any(f"blk.{index}.{tensor}" in tensors for index in range(layers))
    config = {**_read_layers(metadata, name, own, config, tensors), **config}
    if own.model_type == "olmo2" and config.get("sliding_window"):
        config["model_type"] = "olmo3"
    if own.latent:
        config |= read_latent_fields(metadata, name, config)
    if own.sigmoid:
        config |= read_sigmoid_routing(metadata, name)
    if own.delta:
        config |= read_delta_fields(metadata, name, layers)
    if own.mamba:
        config |= read_mamba_fields(metadata, name, config)
    _read_window_pattern(metadata, name, config)
    _refuse_others(metadata, name)
    return config


def _count_layers(metadata: Metadata, name: str) -> tuple[int, int]:
    """(layers, those that draft, which follow them)."""
    key = f"{name}.nextn_predict_layers"
    blocks, drafting = metadata.integer(f"{name}.block_count"), metadata.integer(key, 0)
    if not 1 <= blocks <= _MOST_LAYERS:
        raise metadata.refusal(f"{name}.block_count", f"is {blocks}")
    if not 0 <= drafting < blocks:
        raise metadata.refusal(key, f"is {drafting} of {blocks}")
    return blocks - drafting, drafting


def _norm_eps(metadata: Metadata, name: str, own: Architecture) -> float:
    keys = [f"{name}.{key}" for key in own.norm_eps[1:]]
    stated = [metadata.number(key) for key in keys if key in metadata]
    return stated[0] if stated else metadata.number(keys[0])


def _read_layers(
    metadata: Metadata,
    name: str,
    own: Architecture,
    config: Mapping[str, Any],
    tensors: Mapping[str, StoredTensor],
) -> dict[str, Any]:
    """Heads, how they rotate, and sizes of MLPs."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    if not own.attends:
        for key in _OF_NONE:
            metadata.integer(f"{name}.{key}", 0)
        return {}
    heads = metadata.integer(f"{name}.attention.head_count")
    if heads < 1:
        raise metadata.refusal(f"{name}.attention.head_count", f"is {heads}")
    if own.gemma4:
        return read_gemma4_fields(metadata, name, layers, tensors)
    size = _head_size(metadata, name, own, hidden // heads)
    fields: dict[str, Any] = {
        "num_attention_heads": heads,
        "head_dim": size,
        **read_layer_sizes(metadata, name, own, layers + config["drafting_layers"], layers),
        **_rotation(metadata, name, tensors, size, own),
    }
    if own.large_layers:
        fields["query_pre_attn_scalar"] = hidden // heads if layers == own.large_layers else size
    if own.unnormed_experts:
        fields["use_qk_norm"] = config.get("num_local_experts") != own.unnormed_experts
    return fields


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
