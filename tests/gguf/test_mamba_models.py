"""Protects: Granite 4's Mamba-2 layers, MLPs and experts are put together as folders have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gguf.make_gguf import read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, write_gguf
from tests.gguf.test_families import distance
from tests.gguf.test_served import load, write_folder
from tests.models.tiny_families import FAMILIES
from twostroke.core.errors import ModelLoadError

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


def stored_parts(folder: Path, name: str) -> tuple[dict[str, Value], dict[str, WrittenTensor]]:
    """Metadata and tensors of a folder, which is written first."""
    write_folder(folder, MODELS[name])
    return read_metadata(folder), dict(read_tensors(folder, "F32"))


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
