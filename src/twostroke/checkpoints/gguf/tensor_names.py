"""The tensors of a GGUF file by the names, and as the matrices, that Hugging Face has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.architecture import Architecture
from twostroke.checkpoints.gguf.families.delta_models import put_in_order
from twostroke.checkpoints.gguf.families.latent_models import join_keys_and_values
from twostroke.checkpoints.gguf.families.mamba_models import put_mamba_in_order
from twostroke.checkpoints.gguf.joined_pairs import join_pairs
from twostroke.checkpoints.gguf.rotation_factors import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
)

_OF_LAYER = re.compile(r"blk\.(\d{1,5})\.([\w.]+?)(?:\.(weight|bias|scale))?")
# Tensors that are no weight or bias of a layer, by what their names at Hugging Face end with, and
# what they end with in files.
_WHOLE = {
    "sinks": "weight",
    "e_score_correction_bias": "bias",
    "A_log": "",
    "D": "",
    "dt_bias": "bias",
    "layer_scalar": "weight",
    "experts.gate_up_proj": "weight",
    "experts.down_proj": "weight",
}
_SHORT = ("ffn_norm",)  # names that files of some families end with, without ``weight``
_END = re.compile(r"(\w+)\.(weight|bias)")


def rename_tensors(
    tensors: Mapping[str, StoredTensor], own: Architecture, config: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """All tensors; one that the architecture does not have keeps its name, so that loading refuses
    it by that. The factors of rotation are in ``config``.
    """
    renamed: dict[str, StoredTensor] = {}
    in_config = {ROPE_FACTORS, *((LONG_FACTORS, SHORT_FACTORS) if own.longrope else ())}
    for name, tensor in join_pairs(tensors, own).items():
        if name not in in_config and not _is_drafting(name, config):
            renamed.update(_renamed(name, tensor, own, config))
    if own.delta:
        put_in_order(renamed, config)
    if own.mamba:
        put_mamba_in_order(renamed, config)
    if own.latent:
        _join_latents(renamed, config)
    return renamed


def _is_drafting(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is of a layer that drafts; those follow the others."""
    match, layers = _OF_LAYER.fullmatch(name), config["num_hidden_layers"]
    return match is not None and layers <= int(match[1]) < layers + config["drafting_layers"]


def _join_latents(tensors: dict[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Put one tensor in place of two where files hold keys and values apart."""
    for name in [name for name in tensors if name.endswith(".attn_k_b.weight")]:
        blk = name.removesuffix("attn_k_b.weight")
        values = tensors.get(f"{blk}attn_v_b.weight")
        joined = f"model.layers.{blk.removeprefix('blk.')}self_attn.kv_b_proj.weight"
        if values is not None and joined not in tensors:
            tensors[joined] = join_keys_and_values(blk, tensors[name], values, config)
            del tensors[name], tensors[f"{blk}attn_v_b.weight"]


def _renamed(
    name: str, tensor: StoredTensor, own: Architecture, config: Mapping[str, Any]
) -> Iterator[tuple[str, StoredTensor]]:
    if (match := _OF_LAYER.fullmatch(name)) is None:
        end = _END.fullmatch(name)
        target = own.ends.get(end[1]) if end else None
        yield (f"{target}.{end[2]}" if end and target else name), _shifted(tensor, name, own)
        return
    kind, part = match[2], match[3] or ("weight" if match[2] in _SHORT else "")
    prefix, target = own.layers.format(int(match[1])), own.layer.get(kind)
    if part == "scale" and kind in own.scales:
        yield prefix + own.scales[kind], tensor
        return
    whole = _whole_part(target or "")
    ending = f".{part}" if whole is None else ""
    if target is None or part != (whole if whole is not None else part or "weight"):
        yield name, tensor
    elif "{}" in target:
        for expert, matrix in enumerate(_slices(tensor)):
            yield f"{prefix}{target.format(expert)}{ending}", matrix
    else:
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(kind)
        if kind in own.taps and part == "weight" and len(tensor.shape) == 2:
            channels, taps = tensor.shape
            tensor = replace(tensor, shape=(channels, 1, taps))
        if own.interleaved and heads:
            tensor = replace(tensor, heads=config[heads])
        yield f"{prefix}{target}{ending}", _shifted(tensor, name, own)


def _whole_part(target: str) -> str | None:
    """What its name in files ends with; ``None`` for the weights and biases of a layer."""
    ends = (part for own, part in _WHOLE.items() if f".{target}".endswith(f".{own}"))
    return next(ends, None)


def _shifted(tensor: StoredTensor, name: str, own: Architecture) -> StoredTensor:
    is_norm = name.endswith("norm.weight") and not name.endswith("ssm_norm.weight")
    return replace(tensor, shift=own.norm_shift) if own.norm_shift and is_norm else tensor


def _slices(tensor: StoredTensor) -> Iterator[StoredTensor]:
    """The matrices along the first dimension."""
    count, *shape = tensor.shape
    nbytes = tensor.nbytes // count
    for index in range(count):
        offset = tensor.offset + index * nbytes
        yield replace(tensor, shape=tuple(shape), offset=offset, nbytes=nbytes)
