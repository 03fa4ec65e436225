"""Tiny random checkpoints in Hugging Face layout, written without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from twostroke.layers.norm import OffsetNorm
from twostroke.models.registry import decoder_family
from twostroke.models.support import parse_runnable

TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
LONG_ROPE: dict[str, Any] = {  # as Phi-3's files state it
    "original_max_position_embeddings": 16,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.4],
        "long_factor": [1.2, 1.5, 2.0, 4.0, 6.0, 8.0, 8.0, 9.0],
    },
}
LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def tiny_config(model_type: str, **changes: Any) -> dict[str, Any]:
    """Contents of ``config.json``; ``changes`` override or add fields."""
    return {"model_type": model_type, **TINY, **changes}


def random_tensors(
    raw: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32, std: float = 0.3
) -> dict[str, torch.Tensor]:
    """Every tensor that the checkpoint of ``raw`` must hold.

    Norms and factors scale by about 1, so that a missing one is noticed.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    spec = parse_runnable(raw)
    family = decoder_family(spec.model_type)
    offset = family.make_norm is OffsetNorm
    for parameter in family.parameters(spec):
        for name, shape in parameter.parts:
            values = torch.randn(shape, generator=generator)
            around = 0 if offset and "linear_attn" not in name else 1
            is_factor = "norm" in name or "scal" in name
            tensors[name] = (around + 0.2 * values if is_factor else std * values).to(dtype)
    return tensors


def write_checkpoint(
    folder: Path,
    raw: dict[str, Any],
    tensors: dict[str, torch.Tensor] | None = None,
    shards: int = 1,
) -> Path:
    """Write ``config.json`` and one or several safetensors files (with an index).

    Weights are random by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    tensors = random_tensors(raw) if tensors is None else tensors
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: tensors[name] for name in part}, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return folder
