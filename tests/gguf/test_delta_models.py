"""Protects: linear attention of Qwen3-Next and 3.5 is put back in order, and drafts left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import load_file

from benchmarks.gguf.make_gguf import read_metadata
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from tests.gguf.test_families import distance
from tests.gguf.test_served import load, write_folder
from tests.models.tiny_families import DELTA, FAMILIES
from twostroke.checkpoints.gguf.architecture import ENDS
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES
from twostroke.core.errors import ModelLoadError

Floats = NDArray[np.float32]
MODELS = {"qwen35": "qwen3.5", "qwen35moe": "qwen3.5-moe", "qwen3next": "qwen3-next"}
KEYS, VALUES = DELTA["linear_num_key_heads"], DELTA["linear_num_value_heads"]
KEY_SIZE, SIZE = DELTA["linear_key_head_dim"], DELTA["linear_value_head_dim"]
KEY_ROWS = 2 * KEYS * KEY_SIZE
EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def tiled(values: Floats, axis: int, size: int) -> Floats:
    """Value heads of all key heads in turns, of heads grouped by key head."""
    rows = np.moveaxis(values, axis, 0)
    heads = rows.reshape(KEYS, VALUES // KEYS, size, *rows.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(heads.reshape(rows.shape), 0, axis)


def mixed(values: Floats, size: int) -> Floats:
    return np.concatenate((values[:KEY_ROWS], tiled(values[KEY_ROWS:], 0, size)))


# What the converter does to tensors of Qwen3.5, by their last name.
REORDERED: dict[str, Callable[[Floats], Floats]] = {
    "in_proj_qkv.weight": lambda values: mixed(values, SIZE),
    "conv1d.weight": lambda values: mixed(values, SIZE),
    "in_proj_z.weight": lambda values: tiled(values, 0, SIZE),
    "in_proj_a.weight": lambda values: tiled(values, 0, 1),
    "in_proj_b.weight": lambda values: tiled(values, 0, 1),
    "A_log": lambda values: tiled(values, 0, 1),
    "dt_bias": lambda values: tiled(values, 0, 1),
    "out_proj.weight": lambda values: tiled(values, 1, SIZE),
}


def split(values: Floats) -> tuple[Floats, Floats]:
    """Qwen3-Next's joint matrix as queries, keys and values of all heads, and as gates."""
    hidden, own = values.shape[1], VALUES // KEYS * SIZE
    heads = values.reshape(KEYS, -1, hidden)
    bounds = (0, KEY_SIZE, 2 * KEY_SIZE, 2 * KEY_SIZE + own, 2 * KEY_SIZE + 2 * own)
    parts = [heads[:, a:b].reshape(-1, hidden) for a, b in pairwise(bounds)]
    return np.concatenate(parts[:3]), parts[3]


def stored_tensors(folder: Path, name: str) -> dict[str, WrittenTensor]:
    """The tensors of a folder as llama.cpp's converter stores them."""
    layer = {target: own for own, target in ARCHITECTURES[name].layer.items()}
    ends = {target: own for own, target in ENDS.items()}
    tensors: dict[str, Floats] = {}
    experts: dict[str, dict[int, Floats]] = {}
    for full, tensor in load_file(folder / "model.safetensors").items():
        values: Floats = tensor.numpy()
        last = full.rpartition("linear_attn.")[2]
        if name != "qwen3next" and "linear_attn." in full and last in REORDERED:
            values = REORDERED[last](values)
        if full.endswith("norm.weight") and last != "norm.weight":
            values = values + np.float32(1)
        if not full.startswith("model.layers."):
            tensors[f"{ends[full.removesuffix('.weight')]}.weight"] = values
            continue
        _, _, index, own = full.split(".", 3)
        blk = f"blk.{index}."
        if last == "A_log":
            tensors[f"{blk}ssm_a"] = -np.exp(values)
        elif last == "dt_bias":
            tensors[f"{blk}ssm_dt.bias"] = values
        elif last == "conv1d.weight":
            tensors[f"{blk}ssm_conv1d.weight"] = values.squeeze(1)
        elif last == "in_proj_qkvz.weight":
            tensors[f"{blk}attn_qkv.weight"], tensors[f"{blk}attn_gate.weight"] = split(values)
        elif ".experts." in own and own.split(".")[2].isdigit():
            _, _, expert, part, _ = own.split(".")
            target = f"{blk}ffn_{EXPERT_PARTS[part]}_exps.weight"
            experts.setdefault(target, {})[int(expert)] = values
        else:
            tensors[f"{blk}{layer[own.removesuffix('.weight')]}.weight"] = values
    for target, own_experts in experts.items():
        tensors[target] = np.stack([own_experts[index] for index in sorted(own_experts)])
    return {own: encode(np.ascontiguousarray(each), "F32") for own, each in tensors.items()}


def stored_parts(folder: Path, name: str) -> tuple[dict[str, Value], dict[str, WrittenTensor]]:
    """Metadata and tensors of a folder, which is written first."""
    raw: dict[str, Any] = FAMILIES[MODELS[name]]
    write_folder(folder, raw)
    own: dict[str, Value] = {
        f"{name}.ssm.conv_kernel": 4,
        f"{name}.ssm.state_size": KEY_SIZE,
        f"{name}.ssm.group_count": KEYS,
        f"{name}.ssm.time_step_rank": VALUES,
        f"{name}.ssm.inner_size": VALUES * SIZE,
        f"{name}.full_attention_interval": 4,
        f"{name}.rope.dimension_count": 4,
        f"{name}.rope.dimension_sections": [11, 11, 10, 0],
    }
    return {**read_metadata(folder), **own}, stored_tensors(folder, name)


def write(folder: Path, name: str, **changes: Value) -> Path:
    metadata, tensors = stored_parts(folder, name)
    return write_gguf(folder / "model.gguf", {**metadata, **changes}, tensors)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_logits(name: str, tmp_path: Path) -> None:
    file = write(tmp_path, name)
    assert distance(file, tmp_path) < 2e-4  # norms and rates are stored rounded


def test_layers_that_are_listed_and_layers_that_draft(tmp_path: Path) -> None:
    """The last of five layers is said to draft, in a list that has a flag for it."""
    flags = [True, True, True, False, True]
    name = "qwen35.attention.recurrent_layers"
    listed = write(tmp_path / "listed", "qwen35", **{name: flags})
    assert distance(listed, tmp_path / "listed") < 2e-4
    changes: dict[str, Value] = {name: flags, "qwen35.nextn_predict_layers": 1}
    file = write(tmp_path / "folder", "qwen35", **changes)
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert load(file).spec.num_layers == config["num_hidden_layers"] - 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"qwen35.ssm.inner_size": 47}, "ssm.inner_size is 47, of 4 heads"),
        ({"qwen35.ssm.group_count": 3}, "ssm.time_step_rank is 4, no multiple of groups"),
        ({"qwen35.ssm.state_size": 0}, "ssm.state_size is 0"),
        ({"qwen35.ssm.state_size": 9}, "has shape"),
        ({"qwen35.attention.recurrent_layers": [True]}, "has 1 entries for 5 layers"),
        ({"qwen35.nextn_predict_layers": 5}, "nextn_predict_layers is 5 of 5"),
        ({"qwen35.expert_weights_scale": 2.0}, "expert_weights_scale is not supported"),
    ],
)
def test_what_contradicts_is_named(changes: dict[str, Value], said: str, tmp_path: Path) -> None:
    file = write(tmp_path, "qwen35", **changes)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint
