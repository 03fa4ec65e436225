"""Protects: DeepSeek's files, whole or with keys and values apart, give the logits of folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gguf.make_gguf import read_metadata, read_tensors
from benchmarks.gguf.writer import Value, WrittenTensor, encode, write_gguf
from tests.gguf.test_families import distance
from tests.gguf.test_served import load, write_folder
from tests.models.tiny_families import FAMILIES, LATENT, YARN_ROPE
from twostroke.core.errors import ModelLoadError

HEADS, RANK = 4, LATENT["kv_lora_rank"]
PLAIN, ROTATED, VALUE = (LATENT[f"{name}_head_dim"] for name in ("qk_nope", "qk_rope", "v"))
KEYS: dict[str, Value] = {
    "deepseek2.attention.kv_lora_rank": RANK,
    "deepseek2.rope.dimension_count": ROTATED,
}
WHOLE: dict[str, Value] = {
    "deepseek2.attention.key_length": PLAIN + ROTATED,
    "deepseek2.attention.value_length": VALUE,
}
APART: dict[str, Value] = {
    "deepseek2.attention.head_count_kv": 1,
    "deepseek2.attention.key_length": RANK + ROTATED,
    "deepseek2.attention.value_length": RANK,
    "deepseek2.attention.key_length_mla": PLAIN + ROTATED,
    "deepseek2.attention.value_length_mla": VALUE,
}
SIGMOID: dict[str, Value] = {
    "deepseek2.expert_gating_func": 2,
    "deepseek2.expert_weights_norm": True,
    "deepseek2.expert_weights_scale": 2.5,
}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Value]]] = {
    "v2": (
        FAMILIES["deepseek-v2"],
        {
            "deepseek2.expert_gating_func": 1,
            "deepseek2.expert_weights_scale": 1.5,
            "deepseek2.expert_group_count": 4,
            "deepseek2.expert_group_used_count": 2,
        },
    ),
    "v2-greedy": (
        {**FAMILIES["deepseek-v2"], "topk_method": "greedy"},
        {"deepseek2.expert_weights_scale": 1.5},
    ),
    "v3": (
        {
            **FAMILIES["deepseek-v3"],
            "attention_bias": False,
            "rope_scaling": {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 0.7},
        },
        {
            **SIGMOID,
            "deepseek2.expert_group_count": 2,
            "deepseek2.expert_group_used_count": 1,
            "deepseek2.rope.scaling.yarn_log_multiplier": 0.07,
        },
    ),
    "kimi": (FAMILIES["kimi-k2"], SIGMOID),
}


def stored_parts(
    folder: Path, name: str, *, apart: bool
) -> tuple[dict[str, Value], dict[str, WrittenTensor]]:
    """Metadata and tensors of a folder, which is written first."""
    raw, own = MODELS[name]
    write_folder(folder, raw)
    metadata = {**read_metadata(folder), **KEYS, **WHOLE, **own, **(APART if apart else {})}
    tensors: dict[str, WrittenTensor] = {}
    for stored, tensor in read_tensors(folder, "F32"):
        own_name = stored.replace("ffn_gate_inp.e_score_correction_bias", "exp_probs_b.bias")
        if not apart or "attn_kv_b" not in stored:
            tensors[own_name] = tensor
            continue
        rows = np.frombuffer(tensor.data, np.float32).reshape(HEADS, PLAIN + VALUE, RANK)
        keys, values = rows[:, :PLAIN].swapaxes(1, 2), rows[:, PLAIN:]
        tensors[stored.replace("kv_b", "k_b")] = encode(np.ascontiguousarray(keys), "F32")
        tensors[stored.replace("kv_b", "v_b")] = encode(np.ascontiguousarray(values), "F32")
    return metadata, tensors


def write(folder: Path, name: str, *, apart: bool, **changes: Value) -> Path:
    metadata, tensors = stored_parts(folder, name, apart=apart)
    return write_gguf(folder / "model.gguf", {**metadata, **changes}, tensors)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_logits(name: str, apart: bool, tmp_path: Path) -> None:
    file = write(tmp_path, name, apart=apart)
    assert distance(file, tmp_path) < 1e-6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"deepseek2.attention.value_length": VALUE}, "value_length is 12, and 20"),
        ({"deepseek2.attention.head_count_kv": 4}, "head_count_kv is 4, and 1"),
        ({"deepseek2.attention.value_length_mla": 11}, "attn_v_b.weight has shape"),
        ({"deepseek2.rope.dimension_count": 18}, "key_length is 28, and 38"),
        ({"deepseek2.expert_gating_func": 3}, "expert_gating_func is 3"),
        ({"deepseek2.expert_gating_func": 1}, "expert_weights_norm is not supported with"),
        ({"deepseek2.attention.temperature_scale": 0.1}, "temperature_scale is not supported"),
        ({"deepseek2.leading_dense_block_count": 0}, "lacks model.layers.0.mlp.gate"),
        ({"deepseek2.expert_group_count": 3}, "n_group (3) does not divide"),
    ],
)
def test_what_contradicts_is_named(changes: dict[str, Value], said: str, tmp_path: Path) -> None:
    file = write(tmp_path, "kimi", apart=True, **changes)
    with pytest.raises(ModelLoadError) as failure:
        load(file)
    assert said in failure.value.message and failure.value.hint
