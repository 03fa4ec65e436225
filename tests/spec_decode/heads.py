"""Medusa heads with random weights, in the format in which they are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def head_tensors(
    hidden: int, vocabulary: int | None = None, *, num_heads: int = 3, num_layers: int = 1
) -> dict[str, Tensor]:
    """All tensors of the heads; with ``vocabulary``, each has a matrix of its own."""
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            name, shape = f"{head}.{layer}.linear", (hidden, hidden)
            tensors[f"{name}.weight"] = 0.3 * torch.randn(shape, generator=generator)
            tensors[f"{name}.bias"] = 0.3 * torch.randn(hidden, generator=generator)
        if vocabulary is not None:
            output = torch.randn(vocabulary, hidden, generator=generator)
            tensors[f"{head}.{num_layers}.weight"] = output
    return tensors


def write_heads(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """The folder of the heads; ``config`` overrides or adds fields of ``config.json``."""
    folder.mkdir(parents=True)
    layers = {name.split(".")[1] for name in tensors if ".linear." in name}
    heads = {name.split(".")[0] for name in tensors}
    counts = {"medusa_num_heads": len(heads), "medusa_num_layers": len(layers)}
    content = {**counts, "base_model_name_or_path": "tiny", **config}
    (folder / "config.json").write_text(json.dumps(content))
    save_file(dict(tensors), folder / "medusa_lm_head.safetensors")
    return folder
