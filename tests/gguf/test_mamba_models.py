"""Protects: Granite 4's Mamba-2 layers, MLPs and experts are put together as folders have them."""

from __future__ import annotations

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
from tests.models.tiny_families import FAMILIES
from twostroke.checkpoints.gguf.architectures import ARCHITECTURES, ENDS
from twostroke.core.errors import ModelLoadError

Floats = NDArray[np.float32]
NAME = "granitehybrid"
SCALED = {
    "attention_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.5,
}
MODELS: dict[str, dict[str, Any]] = {
    "mlps": {**FAMILIES["granite-hybrid"], **SCALED},
    "rotated": {**FAMILIES["granite-hybrid-rope"], **SCALED, "mamba_proj_bias": False},
    "experts": {**FAMILIES["granite-hybrid-experts"], **SCALED},
}


def interleaved(values: Floats, heads: int) -> Floats:
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def stored_as(own: str, values: Floats, raw: dict[str, Any]) -> dict[str, Floats]:
    """One of a layer's tensors as llama.cpp's converter stores it, by its names."""
    base, _, part = own.rpartition(".")
    with_experts = bool(raw["num_local_experts"])
    if own == "mamba.A_log":
        return {"ssm_a": -np.exp(values)[:, None]}
    if own == "mamba.D":
        return {"ssm_d": values[:, None]}
    if own == "mamba.dt_bias":
        return {"ssm_dt.bias": values}
    if own == "mamba.conv1d.weight":
        return {"ssm_conv1d.weight": values.squeeze(1)}
    if own == "mamba.norm.weight":
        return {"ssm_norm.weight": values.reshape(raw.get("mamba_n_groups", 1), -1)}
    if base == "block_sparse_moe" or "input_linear" in own or "output_linear" in own:
        kind = "_exps" if "sparse" in own else "_shexp" if with_experts else ""
        if "output_linear" in own:
            return {f"ffn_down{kind}.weight": values}
        gate, up = np.split(values, 2, axis=-2)
        return {f"ffn_gate{kind}.weight": gate, f"ffn_up{kind}.weight": up}
    if own.endswith(("q_proj.weight", "k_proj.weight")):
        is_query = "q_proj" in own
        values = interleaved(values, raw[f"num_{'attention' if is_query else 'key_value'}_heads"])
    names = {target: name for name, target in ARCHITECTURES[NAME].layer.items()}
    return {f"{names[base]}.{part}": values}


def stored_parts(folder: Path, name: str) -> tuple[dict[str, Value], dict[str, WrittenTensor]]:
    """Metadata and tensors of a folder, which is written first."""
    raw = MODELS[name]
    write_folder(folder, raw)
    ends = {target: own for own, target in ENDS.items()}
    tensors: dict[str, Floats] = {}
    for full, tensor in load_file(folder / "model.safetensors").items():
        if not full.startswith("model.layers."):
            tensors[f"{ends[full.removesuffix('.weight')]}.weight"] = tensor.numpy()
            continue
        _, _, index, own = full.split(".", 3)
        for stored, values in stored_as(own, tensor.numpy(), raw).items():
            tensors[f"blk.{index}.{stored}"] = values
    heads, kinds = raw["mamba_n_heads"], raw["layer_types"]
    counts: list[int] = [2 if kind == "attention" else 0 for kind in kinds]
    metadata: dict[str, Value] = {
        **read_metadata(folder),
        f"{NAME}.attention.head_count_kv": counts,
        f"{NAME}.ssm.conv_kernel": 4,
        f"{NAME}.ssm.group_count": raw.get("mamba_n_groups", 1),
        f"{NAME}.ssm.time_step_rank": heads,
        f"{NAME}.ssm.inner_size": 64,
        f"{NAME}.rope.scaling.finetuned": name == "rotated",
    }
    encoded = {own: encode(np.ascontiguousarray(each), "F32") for own, each in tensors.items()}
    return metadata, encoded


def write(folder: Path, name: str, **changes: Value) -> Path:
    metadata, tensors = stored_parts(folder, name)
    return write_gguf(folder / "model.gguf", {**metadata, **changes}, tensors)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_logits(name: str, tmp_path: Path) -> None:
    assert distance(write(tmp_path, name), tmp_path) < 1e-4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{NAME}.ssm.inner_size": 63}, "ssm.inner_size is 63, of 8 heads"),
        ({f"{NAME}.ssm.time_step_rank": 4}, "expected (4, 1)"),
        ({f"{NAME}.ssm.inner_size": 128}, "expected (128,)"),
        ({f"{NAME}.attention.head_count_kv": [2, 0, 2]}, "lacks model.layers.0.self_attn"),
        ({f"{NAME}.ssm.dt_b_c_rms": True}, "dt_b_c_rms is not supported"),
    ],
)
def test_what_contradicts_is_named(changes: dict[str, Value], said: str, tmp_path: Path) -> None:
    file = write(tmp_path, "mlps", **changes)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint


def test_half_of_a_pair_is_named(tmp_path: Path) -> None:
    metadata, tensors = stored_parts(tmp_path, "mlps")
    del tensors["blk.0.ffn_up.weight"]
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    with pytest.raises(ModelLoadError, match=r"lacks model\.layers\.0\.shared_mlp"):
        load(file)
