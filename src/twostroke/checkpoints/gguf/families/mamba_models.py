"""Mamba-2 layers, of which GGUF files have tensors of other shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import Floats, derive
from twostroke.checkpoints.gguf.metadata import HINT, Metadata
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config.recurrent_layers import MAMBA2

_RATES = ("mamba.A_log", "mixer.A_log")
_SKIPS = ("mamba.D", "mixer.D")
_NORMS = ("mamba.norm.weight", "mixer.norm.weight")


def read_mamba_fields(metadata: Metadata, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What ``config.json`` says of Mamba-2 layers, and whether attention rotates.

    Args:
        name: That of the architecture.
        config: What was read before: the ``model_type`` and the hidden size.

    Raises:
        ModelLoadError: A key is missing, or contradicts others.
    """
    names, hidden = MAMBA2[config["model_type"]], config["hidden_size"]
    heads = metadata.integer(f"{name}.ssm.time_step_rank")
    inner = metadata.integer(f"{name}.ssm.inner_size")
    is_multiple = bool(names.inner) or not names.expand or (hidden > 0 and not inner % hidden)
    if heads < 1 or inner < 1 or inner % heads or not is_multiple:
        sizes = f"is {inner}, of {heads} heads and of embeddings of {hidden}"
        raise metadata.refusal(f"{name}.ssm.inner_size", sizes)
    fields: dict[str, Any] = {
        names.heads[0]: heads,
        names.head_dim: inner // heads,
        names.groups[0]: metadata.integer(f"{name}.ssm.group_count"),
        names.state[0]: metadata.integer(f"{name}.ssm.state_size"),
        names.kernel: metadata.integer(f"{name}.ssm.conv_kernel"),
    }
    if names.inner:
        fields[names.inner[0]] = inner
    elif names.expand:
        fields[names.expand] = inner // hidden
    if names.norm_first:
        fields[names.norm_first] = False
    rotates = metadata.flag(f"{name}.rope.scaling.finetuned", True)
    if config["model_type"] == "bamba" and not rotates:
        key = f"{name}.rope.scaling.finetuned"
        raise metadata.refusal(key, "must be true without a shared MLP")
    return {**fields, "position_embedding_type": "rope" if rotates else "nope"}


def put_mamba_in_order(tensors: dict[str, StoredTensor], config: Mapping[str, Any]) -> None:
    """Replace tensors by those that Hugging Face has.

    Files have ``-exp(A_log)`` and ``D`` as columns, and the norm's weights by group.

    Raises:
        ModelLoadError: A tensor has a shape that the metadata do not say.
    """
    names = MAMBA2[config["model_type"]]
    heads, size = config[names.heads[0]], config[names.head_dim]
    for name, tensor in list(tensors.items()):
        if name.endswith((*_SKIPS, *_NORMS)):
            own = heads * size if name.endswith(_NORMS) else heads
            if int(np.prod(tensor.shape)) != own:
                raise _refusal(name, tensor, (own,))
            tensors[name] = replace(tensor, shape=(own,))
        elif name.endswith(_RATES):
            if tensor.shape != (heads, 1):
                raise _refusal(name, tensor, (heads, 1))
            tensors[name] = derive((tensor,), (heads,), _logarithms)


def _refusal(name: str, tensor: StoredTensor, expected: tuple[int, ...]) -> ModelLoadError:
    shapes = f"has shape {tensor.shape}, expected {expected}"
    return ModelLoadError(f"{tensor.path}: {name} {shapes}", hint=HINT)


def _logarithms(sources: Sequence[Floats]) -> Floats:
    least = np.finfo(np.float32).tiny
    return np.log(np.maximum(-sources[0].reshape(-1), least))
