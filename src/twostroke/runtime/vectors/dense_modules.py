"""Dense modules of sentence-transformers: linear layers between pooling and normalising."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.checkpoints.folder import read_safetensors
from twostroke.core.errors import ModelLoadError
from twostroke.core.pooling import PoolingAbility
from twostroke.model_spec.vectors.pooling_files import HINT, DenseModule, read_pooling_files
from twostroke.models.parameters import Parameter
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import StoredParameters

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda state: state,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
}


class _Layer(NamedTuple):
    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None  # [outputs]
    activation: Callable[[Tensor], Tensor]


class DenseModules:
    """All of a checkpoint's, in float32. Without any, states stay as they are."""

    def __init__(self, layers: Sequence[_Layer] = ()) -> None:
        self._layers = layers

    @classmethod
    def load(cls, folder: Path, ability: PoolingAbility, device: torch.device) -> DenseModules:
        """Load the modules of a model that embeds, from their safetensors.

        Raises:
            ModelLoadError: A file is missing or broken, or does not fit its config.json.
        """
        files = read_pooling_files(folder) if ability.size else None
        modules = () if files is None else files.dense
        return cls([_load(folder / module.place, module, device) for module in modules])

    def __call__(self, state: Tensor) -> Tensor:
        """A pooled state, float32 ``[inputs]``, through all of them."""
        for layer in self._layers:
            state = layer.activation(F.linear(state, layer.weight, layer.bias))
        return state


def _load(folder: Path, module: DenseModule, device: torch.device) -> _Layer:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ModelLoadError(f"{path} is missing (pickles are never read)", hint=HINT)
    wanted = [
        Parameter("weight", (("linear.weight", (module.outputs, module.inputs)),)),
        *([Parameter("bias", (("linear.bias", (module.outputs,)),))] if module.bias else []),
    ]
    files = TensorFiles(read_safetensors([path]))
    files.check(wanted, lambda name: False)
    stored = StoredParameters(wanted, files, torch.float32, device)
    bias = stored.pop("bias") if module.bias else None
    return _Layer(stored.pop("weight"), bias, ACTIVATIONS[module.activation])
