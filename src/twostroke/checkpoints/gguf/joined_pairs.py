"""Tensors of Hugging Face that GGUF files have in two: gate and up of MLPs and of experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import Floats, derive
from twostroke.checkpoints.gguf.architecture import Architecture
from twostroke.checkpoints.gguf.metadata import HINT
from twostroke.core.errors import ModelLoadError


def join_pairs(tensors: Mapping[str, StoredTensor], own: Architecture) -> dict[str, StoredTensor]:
    """The tensors, one in place of two, by its name at Hugging Face; the others by the file's.

    Half of a pair keeps its name, so that loading refuses it.

    Raises:
        ModelLoadError: The two have different shapes.
    """
    joined = dict(tensors)
    for (first, second), target in own.pairs.items():
        for name in [name for name in joined if name.endswith(f".{first}.weight")]:
            blk = name.removesuffix(f"{first}.weight")
            index, other = blk.removeprefix("blk.").removesuffix("."), f"{blk}{second}.weight"
            whole = own.layers.format(index) + target
            if other in joined and whole not in joined:
                joined[whole] = _joined(joined.pop(name), joined.pop(other), other)
    return joined


def _joined(first: StoredTensor, second: StoredTensor, name: str) -> StoredTensor:
    if first.shape != second.shape or len(first.shape) < 2:
        shapes = f"has shape {second.shape}, expected {first.shape} of its counterpart"
        raise ModelLoadError(f"{second.path}: {name} {shapes}", hint=HINT)
    *stack, rows, inputs = first.shape
    return derive((first, second), (*stack, 2 * rows, inputs), _one_after_another)


def _one_after_another(sources: Sequence[Floats]) -> Floats:
    return np.concatenate(sources, axis=-2)
