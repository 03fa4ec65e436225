"""LoRA adapters with random values, written as PEFT writes them; and the weights merged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
Tensors = dict[str, Tensor]


def adapter_tensors(
    base: Mapping[str, Tensor],
    targets: Sequence[str] = (*ATTENTION, *MLP),
    rank: int = 4,
    seed: int = 1,
    std: float = 0.3,
) -> Tensors:
    """Both matrices of each of the base's modules that is named in ``targets``."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        if weight.ndim == 2 and module.rpartition(".")[2] in targets:
            outputs, inputs = weight.shape
            down = std * torch.randn(rank, inputs, generator=generator)
            up = std * torch.randn(outputs, rank, generator=generator)
            tensors[f"base_model.model.{module}.lora_A.weight"] = down
            tensors[f"base_model.model.{module}.lora_B.weight"] = up
    return tensors


def adapter_config(
    targets: Sequence[str] = (*ATTENTION, *MLP), rank: int = 4, **changes: Any
) -> dict[str, Any]:
    """Contents of ``adapter_config.json``, with the fields of PEFT 0.18 at their defaults."""
    return {
        "alora_invocation_tokens": None,
        "alpha_pattern": {},
        "arrow_config": None,
        "auto_mapping": None,
        "base_model_name_or_path": "tiny",
        "bias": "none",
        "corda_config": None,
        "ensure_weight_tying": False,
        "eva_config": None,
        "exclude_modules": None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_pattern": None,
        "layers_to_transform": None,
        "loftq_config": {},
        "lora_alpha": 6,
        "lora_bias": False,
        "lora_dropout": 0.05,
        "megatron_config": None,
        "megatron_core": "megatron.core",
        "modules_to_save": None,
        "peft_type": "LORA",
        "peft_version": "0.18.0",
        "qalora_group_size": 16,
        "r": rank,
        "rank_pattern": {},
        "revision": None,
        "target_modules": list(targets),
        "target_parameters": None,
        "task_type": "CAUSAL_LM",
        "trainable_token_indices": None,
        "use_dora": False,
        "use_qalora": False,
        "use_rslora": False,
        **changes,
    }


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def merged(base: Mapping[str, Tensor], adapter: Tensors, scale: float) -> Tensors:
    """The base's weights ``W + scale * B A``."""
    tensors = dict(base)
    for name, up in adapter.items():
        if name.endswith(".lora_B.weight"):
            module = name.removesuffix(".lora_B.weight")
            weight = f"{module.removeprefix('base_model.model.')}.weight"
            down = adapter[f"{module}.lora_A.weight"]
            tensors[weight] = tensors[weight] + scale * (up @ down)
    return tensors
