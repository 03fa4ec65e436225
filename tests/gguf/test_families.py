"""Protects: what the files of one family say in a way of their own is what its folder says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.gguf.make_gguf import convert, read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from tests.checkpoints import LLAMA3_ROPE, LONG_ROPE
from tests.gguf.test_served import IDS, OWN, load, write_folder
from tests.models.tiny_families import FAMILIES
from twostroke.core.errors import ModelLoadError
from twostroke.runtime.reference import naive_logits

STEP_ROPE = {**LLAMA3_ROPE, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192}
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


def changed(folder: Path, name: str, **changes: Value) -> Path:
    """The file of a family, of whose metadata some say something else."""
    write_folder(folder, OWN[name])
    return convert(folder, folder / "model.gguf", "F32", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("nemotron-h", {"attention.head_count_kv": [0, 2]}, "has 2 entries for 5 layers"),
        ("nemotron-h", {"feed_forward_length": 56}, "lacks backbone.layers.0.mixer.up_proj"),
        ("nemotron-h", {"feed_forward_length": [0, 56, 0, 0, 57]}, "layers that differ"),
        ("nemotron-h", {"attention.head_count_kv": [0, 0, 2, 1, 0]}, "layers that differ"),
        ("nemotron-h", {"ssm.inner_size": 63}, "ssm.inner_size is 63, of 8 heads"),
        ("nemotron-h-experts", {"expert_gating_func": 1}, "must be 2 in this architecture"),
        ("nemotron-h-experts", {"expert_gating_func": 3}, "is 3: not supported"),
        ("bamba", {"rope.scaling.finetuned": False}, "must be true without a shared MLP"),
        ("mamba2", {"ssm.inner_size": 72}, "is 72, of 8 heads and of embeddings of 32"),
        ("falcon-h1", {"ssm.group_count": 3}, "3 groups"),
        ("glm4-moe", {"nextn_predict_layers": 2}, "nextn_predict_layers is 2 of 2"),
        ("llama4", {"attention.head_count_kv": [2, 0, 2, 2]}, "layers that differ"),
        ("llama4", {"feed_forward_length": 0}, "intermediate_size_mlp must be from 1"),
        ("llama4", {"attention.sliding_window": 0}, "sliding_window is not supported"),
        ("gemma4", {"attention.sliding_window_pattern": [True]}, "must have 6 entries"),
        ("gemma4", {"attention.sliding_window_pattern": [True] * 6}, "the last of them false"),
        ("gemma4", {"attention.value_length_swa": 8}, "value_length_swa is another than 12"),
        ("gemma4", {"rope.dimension_count": 8}, "rope.dimension_count is another than 16"),
        ("gemma4", {"attention.key_length_swa": 0}, "is another than 0 of keys"),
        ("gemma4", {"attention.head_count_kv": [2] * 5}, "has 5 entries for 6 layers"),
        ("gemma4-shared", {"feed_forward_length": [56, 56, 56, 112, 112, 56]}, "twice that in"),
    ],
)
def test_what_contradicts_is_named(
    name: str, changes: dict[str, Value], said: str, tmp_path: Path
) -> None:
    own = ARCHITECTURE_NAMES[name.removesuffix("-shared")]
    keys = {f"{own}.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelLoadError) as failure:
        load(changed(tmp_path, name, **keys))
    assert said in failure.value.message and failure.value.hint


ARCHITECTURE_NAMES = {
    "bamba": "granitehybrid",
    "falcon-h1": "falcon-h1",
    "gemma4": "gemma4",
    "glm4-moe": "glm4moe",
    "llama4": "llama4",
    "mamba2": "mamba2",
    "nemotron-h": "nemotron_h",
    "nemotron-h-experts": "nemotron_h_moe",
}


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (np.array([1, 1e30] * 4), "must be 1 first"),
        (np.array([1, 1, 8, 8, 8, 8, 8, 8]), "must be 1 first"),
        (np.ones(4), "is F32 of (4,), expected F32 of (8,)"),
        (None, "rope_freqs.weight is missing"),
    ],
)
def test_factors_of_gemma_4_that_are_none_of_its(
    factors: NDArray[np.float64] | None, said: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "folder", OWN["gemma4"])
    tensors = dict(read_tensors(folder, "F32"))
    del tensors["rope_freqs.weight"]
    if factors is not None:
        tensors["rope_freqs.weight"] = encode(factors.astype(np.float32), "F32")
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message


def test_gate_and_up_of_gemma_4_apart(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", OWN["gemma4-moe"])
    tensors = dict(read_tensors(folder, "F32"))
    for name in [name for name in tensors if "gate_up_exps" in name]:
        whole = tensors.pop(name)
        values = np.frombuffer(whole.data, np.float32).reshape(whole.shape)
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            tensors[name.replace("gate_up", part)] = encode(half, "F32")
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    assert distance(file, folder) == 0.0


def test_llama_4_with_many_experts_norms_no_heads(tmp_path: Path) -> None:
    """As Maverick, which files tell by how many there are; and its rotation has one step."""
    raw = {**OWN["llama4"], "num_local_experts": 128, "use_qk_norm": False}
    folder = write_folder(tmp_path / "folder", {**raw, "rope_scaling": STEP_ROPE})
    tensors = dict(read_tensors(folder, "F32"))
    waves = 2 * np.pi * 10_000.0 ** (np.arange(0, 12, 2) / 12)
    factors = np.where(waves > 8192, 4.0, 1.0).astype(np.float32)
    tensors["rope_freqs.weight"] = encode(factors, "F32")
    file = write_gguf(tmp_path / "model.gguf", read_metadata(folder), tensors)
    assert set(factors) == {1.0, 4.0} and distance(file, folder) == 0.0


def test_a_list_of_one_number_says_no_more_than_the_number(tmp_path: Path) -> None:
    """Which layers see a window is what it was."""
    raw = OWN["gemma3"]
    folder = write_folder(tmp_path / "folder", raw)
    heads: list[int] = [raw["num_key_value_heads"]] * raw["num_hidden_layers"]
    changes: dict[str, Value] = {"gemma3.attention.head_count_kv": heads}
    listed = convert(folder, tmp_path / "listed.gguf", "F32", **changes)
    assert load(listed).spec == load(convert(folder, tmp_path / "model.gguf", "F32")).spec
