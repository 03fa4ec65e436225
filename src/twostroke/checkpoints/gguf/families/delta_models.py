"""Qwen3-Next and 3.5, of whose linear attention GGUF files have other tensors and other orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import Floats, derive
from twostroke.checkpoints.gguf.metadata import HINT, Metadata
from twostroke.core.errors import ModelLoadError

_SIZES = {
    "linear_conv_kernel_dim": "conv_kernel",
    "linear_key_head_dim": "state_size",
    "linear_num_key_heads": "group_count",
    "linear_num_value_heads": "time_step_rank",
}
_MIXED, _GATE = "linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"
_FUSED = "linear_attn.in_proj_qkvz.weight"
_BOTH_GATES = ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight")


def read_delta_fields(metadata: Metadata, name: str, layers: int) -> dict[str, Any]:
    """What ``config.json`` says of linear attention, and of which layers have it.

    Args:
        name: That of the architecture.
        layers: How many there are, without those that draft.

    Raises:
        ModelLoadError: A key is missing, or contradicts others.
    """
    config: dict[str, Any] = {}
    for field, key in _SIZES.items():
        config[field] = metadata.integer(f"{name}.ssm.{key}")
        if config[field] < 1:
            raise metadata.refusal(f"{name}.ssm.{key}", f"is {config[field]}")
    heads, inner = config["linear_num_value_heads"], metadata.integer(f"{name}.ssm.inner_size")
    if inner < 1 or inner % heads:
        raise metadata.refusal(f"{name}.ssm.inner_size", f"is {inner}, of {heads} heads")
    if heads % config["linear_num_key_heads"]:
        raise metadata.refusal(f"{name}.ssm.time_step_rank", f"is {heads}, no multiple of groups")
    config["linear_value_head_dim"] = inner // heads
    config["full_attention_interval"] = metadata.integer(f"{name}.full_attention_interval", 4)
    metadata.asked.add(f"{name}.rope.dimension_sections")  # alike where there are no images
    listed = f"{name}.attention.recurrent_layers"
    if listed in metadata:
        flags = metadata.flags(listed)
        if len(flags) < layers:
            raise metadata.refusal(listed, f"has {len(flags)} entries for {layers} layers")
        kinds = {True: "linear_attention", False: "full_attention"}
        config["layer_types"] = [kinds[flag] for flag in flags[:layers]]
    return config


def put_in_order(tensors: dict[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Replace the tensors of linear attention by those that Hugging Face has.

    Value heads of one key head follow each other there; in files of Qwen3.5 those of all key heads
    take turns. Rates are stored as what the logarithm gives: ``-exp(A_log)``. Qwen3-Next has
    queries, keys, values and gates of a key head after another.

    Raises:
        ModelLoadError: A tensor has a shape that the metadata do not say.
    """
    is_fused = config["model_type"] == "qwen3_next"
    for name in [name for name in tensors if name.endswith("linear_attn.A_log")]:
        layer = name.removesuffix("linear_attn.A_log")
        _put_layer_in_order(tensors, layer, config, is_fused=is_fused)


def _put_layer_in_order(
    tensors: dict[str, StoredTensor], layer: str, config: Mapping[str, Any], *, is_fused: bool
) -> None:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_rows, size = 2 * keys * config["linear_key_head_dim"], config["linear_value_head_dim"]
    hidden, kernel = config["hidden_size"], config["linear_conv_kernel_dim"]
    tiles = 1 if is_fused else values // keys
    by_head, by_element = _order(tiles, values, 1), _order(tiles, values, size)
    channels = np.concatenate((np.arange(key_rows), key_rows + by_element))
    width = len(by_element)
    plans: dict[str, tuple[tuple[int, ...], NDArray[np.int64], int]] = {
        "linear_attn.A_log": ((values,), by_head, 0),
        "linear_attn.dt_bias": ((values,), by_head, 0),
        "linear_attn.conv1d.weight": ((len(channels), 1, kernel), channels, 0),
        _MIXED: ((len(channels), hidden), channels, 0),
        _GATE: ((width, hidden), by_element, 0),
        "linear_attn.out_proj.weight": ((hidden, width), by_element, 1),
        **dict.fromkeys(_BOTH_GATES, ((values, hidden), by_head, 0)),
    }
    for own, (shape, order, axis) in plans.items():
        tensor = tensors.get(layer + own)
        if tensor is None:
            continue  # which loading says, or Qwen3-Next has not
        if tensor.shape != shape:
            raise ModelLoadError(
                f"{tensor.path}: {layer}{own} has shape {tensor.shape}, expected {shape}",
                hint=HINT,
            )
        is_rate = own == "linear_attn.A_log"
        if tiles > 1 or is_rate:
            tensors[layer + own] = derive((tensor,), shape, partial(_taken, order, axis, is_rate))
    if is_fused and layer + _MIXED in tensors and layer + _GATE in tensors:
        both = tensors.pop(layer + _MIXED), tensors.pop(layer + _GATE)
        rows = key_rows + 2 * width
        tensors[layer + _FUSED] = derive(both, (rows, hidden), partial(_fused, keys, key_rows))


def _order(tiles: int, heads: int, size: int) -> NDArray[np.int64]:
    """Where the elements of heads that take turns lie, in the order of Hugging Face."""
    places = np.arange(heads * size).reshape(tiles, heads // tiles, size)
    return places.swapaxes(0, 1).reshape(-1)


def _taken(order: NDArray[np.int64], axis: int, is_rate: bool, sources: Sequence[Floats]) -> Floats:
    values = np.take(sources[0], order, axis)
    if not is_rate:
        return values
    least = np.finfo(np.float32).tiny
    return np.log(np.maximum(-values, least))


def _fused(keys: int, key_rows: int, sources: Sequence[Floats]) -> Floats:
    mixed, gates = sources
    hidden = mixed.shape[1]
    half = key_rows // 2
    parts = (mixed[:half], mixed[half:key_rows], mixed[key_rows:], gates)
    by_head = [part.reshape(keys, -1, hidden) for part in parts]
    return np.concatenate(by_head, axis=1).reshape(-1, hidden)
