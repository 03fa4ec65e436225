"""Protects: what the files of one family say in a way of their own is what its folder says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gguf.make_gguf import convert, read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from tests.checkpoints import LONG_ROPE
from tests.gguf.test_served import IDS, load, write_folder
from tests.models.tiny_families import FAMILIES
from twostroke.core.errors import ModelLoadError
from twostroke.runtime.reference import naive_logits

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


def distance(file: Path, folder: Path, ids: list[int] = IDS) -> float:
    """The largest between the logits of both."""
    return float((naive_logits(load(file), ids) - naive_logits(load(folder), ids)).abs().max())


def with_long_factors(folder: Path) -> tuple[dict[str, Value], dict[str, WrittenTensor]]:
    """Metadata and tensors of a folder, which is written first."""
    write_folder(folder, FAMILIES["phi4-longrope"])
    length, factors = LONG_ROPE["original_max_position_embeddings"], LONG_ROPE["rope_scaling"]
    growth = float(np.sqrt(1 + np.log(256 / length) / np.log(length)))
    metadata = {
        **read_metadata(folder),
        "phi3.rope.scaling.attn_factor": growth,
        "phi3.rope.scaling.original_context_length": length,
    }
    tensors = dict(read_tensors(folder, "F32"))
    for name, field in ((LONG, "long_factor"), (SHORT, "short_factor")):
        tensors[name] = encode(np.array(factors[field], np.float32), "F32")
    return metadata, tensors


def test_factors_of_phi_3(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    metadata, tensors = with_long_factors(folder)
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    assert distance(file, folder) < 1e-5
    plain = {name: tensor for name, tensor in tensors.items() if name not in (LONG, SHORT)}
    write_gguf(file, {**metadata, "phi3.rope.scaling.attn_factor": 1.0}, plain)
    with pytest.raises(ModelLoadError, match="attn_factor is not supported"):
        load(file)


@pytest.mark.parametrize(
    ("changes", "dropped", "said"),
    [
        ({}, [SHORT], f"{SHORT} is missing"),
        ({"phi3.rope.scaling.type": "yarn"}, [], "rope.scaling.type is 'yarn'"),
        ({"phi3.rope.scaling.factor": 4.0}, [], "rope.scaling.factor is not supported"),
        ({"phi3.rope.dimension_count": 8}, [], f"{LONG} is F32 of"),
    ],
)
def test_factors_that_contradict_are_named(
    changes: dict[str, Any], dropped: list[str], said: str, tmp_path: Path
) -> None:
    metadata, tensors = with_long_factors(tmp_path / "folder")
    kept = {name: tensor for name, tensor in tensors.items() if name not in dropped}
    file = write_gguf(tmp_path / "model.gguf", {**metadata, **changes}, kept)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([0, 0, 2], "has 3 entries for 4 layers"),
        ([1, 0, 2, 0], "layers that differ are not supported"),
        ([0.0, 0.0, 2.0, 0.0], "must be a list of whole numbers"),
        ([0, 2, 0, 0], "lacks model.layers.1.self_attn"),
    ],
)
def test_layers_of_lfm2_that_do_not_fit(counts: list[int], said: str, tmp_path: Path) -> None:
    raw = {**FAMILIES["lfm2"], "block_auto_adjust_ff_dim": False}
    folder = write_folder(tmp_path / "folder", raw)
    changes: dict[str, Value] = {"lfm2.attention.head_count_kv": counts}
    file = convert(folder, tmp_path / "model.gguf", "F32", **changes)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint
