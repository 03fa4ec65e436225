"""Which models this decoder computes as the reference implementation does. Others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.quantised.read_scheme import read_scheme
from twostroke.core.errors import ModelLoadError
from twostroke.layers.activation import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from twostroke.layers.mxfp4 import BLOCK
from twostroke.layers.rotary import ROPE_KINDS
from twostroke.model_spec.config.families import FAMILIES, Family
from twostroke.model_spec.config_fields import CHECK, short
from twostroke.model_spec.layer_specs import AttentionSpec, ExpertsSpec, MlpSpec, RecurrentSpec
from twostroke.model_spec.reader import parse_model
from twostroke.model_spec.recurrent_forms import Mamba2Form
from twostroke.model_spec.rope import RopeSpec
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.registry import IMAGE_MODELS, MODEL_TYPES, TEXT_PARTS

_REFUSED_ROPE = {
    "dynamic": (
        "its angles change with the length of the request, so keys already in the cache would"
        " become wrong"
    ),
}


def read_runnable(checkpoint: Checkpoint) -> ModelSpec:
    """Read the configuration of a checkpoint.

    Raises:
        ModelLoadError: As ``parse_model`` and ``check_runnable`` say.
    """
    if not checkpoint.config:
        hint = (
            "give a Hugging Face checkpoint folder, config.json and safetensors; of GGUF files name"
            " the format, as in folder:Q4_K_M"
        )
        raise ModelLoadError(f"{checkpoint.path} has no config.json, or nothing in it", hint=hint)
    return parse_runnable(checkpoint.config, checkpoint.generation)


def parse_runnable(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelSpec:
    """Read and check the contents of ``config.json`` (and ``generation_config.json``)."""
    spec = parse_model(config, generation, [*MODEL_TYPES, *IMAGE_MODELS, *TEXT_PARTS])
    read_scheme(config)  # which refuses what cannot be unpacked
    check_runnable(spec)
    return spec


def check_runnable(spec: ModelSpec) -> None:
    """Refuse what the decoder would compute differently from transformers.

    Raises:
        ModelLoadError: It names what is not supported.
    """
    if spec.quantization == "mxfp4" and spec.model_type == "gpt_oss":
        _check_blocks(spec)
    elif spec.quantization == "mxfp4":
        raise ModelLoadError(
            f"config.json: quantization_config: the checkpoint is quantized ({spec.quantization}),"
            " which is not supported",
            hint="use the bfloat16, float16 or float32 version of this model",
        )
    family = FAMILIES[spec.model_type]
    if spec.stated_length is None and not family.unbounded:
        raise _refusal("max_position_embeddings is missing")
    if spec.logit_soft_cap is not None and not family.soft_caps:
        raise _refusal("final_logit_softcapping is not supported in this architecture")
    for layer in spec.layers:
        if layer.experts is not None and not family.experts:
            names = "num_experts, num_local_experts or n_routed_experts"
            raise _refusal(f"{names}: experts are not supported in this architecture")
        if (mlp := layer.mlp or layer.experts) is not None:
            _check_mlp(mlp)
        if layer.recurrent is not None:
            _check_recurrent(layer.recurrent)
        if layer.attention is not None:
            _check_attention(layer.attention, family)


def _check_blocks(spec: ModelSpec) -> None:
    """Rows of experts' matrices consist of whole blocks."""
    sizes = {layer.experts.size for layer in spec.layers if layer.experts}
    for name, size in [
        ("hidden_size", spec.hidden_size),
        *(("intermediate_size", n) for n in sizes),
    ]:
        if size % BLOCK:
            raise _refusal(f"{name} must be a multiple of {BLOCK} for mxfp4, got {size}")


def _check_mlp(mlp: MlpSpec | ExpertsSpec) -> None:
    activations = GATED_ACTIVATIONS if mlp.gated else PLAIN_ACTIVATIONS
    if mlp.activation not in activations:
        raise ModelLoadError(
            f"unsupported activation: hidden_act is {short(mlp.activation)}",
            hint="supported: " + ", ".join(activations),
        )


def _check_recurrent(recurrent: RecurrentSpec) -> None:
    form = recurrent.form
    if isinstance(form, Mamba2Form) and form.activation not in ("silu", "swish"):
        raise ModelLoadError(
            "config.json: hidden_act (or mamba_hidden_act): unsupported activation of Mamba-2"
            f" layers: {short(form.activation)}",
            hint="supported: silu",
        )


def _check_attention(attention: AttentionSpec, family: Family) -> None:
    if attention.soft_cap is not None and not family.soft_caps:
        raise _refusal("attn_logit_softcapping is not supported in this architecture")
    if attention.index is not None:
        raise _refusal("index_topk: sparse attention is not supported")
    if attention.rope is None:
        return
    if attention.rotary_fraction != 1 and not family.partial:
        part = attention.rotary_fraction
        raise _refusal(f"partial_rotary_factor {part} is not supported in this architecture")
    _check_rope(attention.rope, attention.rotated)
    if attention.rotated % 2 or not attention.rotated:
        size = attention.key_dim if attention.rotary_fraction == 1 else attention.rotated
        raise _refusal(f"head_dim must be even for rotary embeddings, got {size}")


def _check_rope(rope: RopeSpec, rotated: int) -> None:
    if rope.kind not in ROPE_KINDS:
        reason = _REFUSED_ROPE.get(rope.kind, "it is unknown")
        raise ModelLoadError(
            f"config.json: unsupported rope scaling {short(rope.kind)} (rope_type): {reason}",
            hint="supported: " + ", ".join(ROPE_KINDS),
        )
    for name, factors in (("short", rope.short_factors), ("long", rope.long_factors)):
        if rope.kind == "longrope" and len(factors) != rotated // 2:
            raise _refusal(
                f"{name}_factor must have {rotated // 2} numbers, one for each pair of a head's"
                f" rotated elements, got {len(factors)}"
            )
    if rope.kind == "longrope" and rope.original_length < 2:
        raise _refusal("original_max_position_embeddings must be above 1 for longrope")
    if rope.kind == "yarn" and rope.theta <= 1:
        raise _refusal(f"rope_theta must be above 1 for yarn, got {rope.theta:g}")


def _refusal(message: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: {message}", hint=CHECK)
