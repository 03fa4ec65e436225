"""Reads Medusa heads from a folder in the format in which they are published.

``config.json`` says ``medusa_num_heads`` and ``medusa_num_layers``. The tensors are called
``{head}.{layer}.linear.weight`` and ``.bias``, and ``{head}.{medusa_num_layers}.weight`` is the
head's own matrix over the vocabulary. Where no head has one, all share the target's.
"""

from __future__ import annotations

import math
from pathlib import Path

from torch import Tensor

from twostroke.checkpoints.folder import read_safetensors
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.layers.linear import make_linear
from twostroke.model_spec.config_fields import ConfigFields
from twostroke.model_spec.json_files import read_object
from twostroke.model_spec.model_files import weight_files
from twostroke.models.language_model import LanguageModel
from twostroke.models.parameters import Parameter
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import StoredParameters, check_memory
from twostroke.spec_decode.medusa import LayerByHead, MedusaHeads, ResidualLayer, StackedLayer

MOST_HEADS, MOST_LAYERS = 64, 16
CONVERT = (
    "published heads are often a pickle, and loading one can run any code. Convert it once, where"
    ' you trust the file: python -c "import torch, safetensors.torch as s;'
    " s.save_file(torch.load('medusa_lm_head.pt', weights_only=True),"
    " 'medusa_lm_head.safetensors')\""
)
FIT = "give heads that were trained for this model"


def load_medusa_heads(name: str, folder: Path, target: LanguageModel) -> MedusaHeads:
    """The heads in ``folder``, in the target's precision and on its device.

    Args:
        name: What the user calls them.

    Raises:
        ConfigError: They are for another hidden size or vocabulary than the target's.
        ModelLoadError: The folder holds no Medusa heads, or pickles only; a file is broken.
        InsufficientMemoryError: The heads exceed the free memory.
    """
    fields = ConfigFields(read_object(folder / "config.json"))
    if "medusa_num_heads" not in fields.raw:
        raise ModelLoadError(
            f"{name} holds no Medusa heads: its config.json has no medusa_num_heads",
            hint="give the folder of the heads, not of a model",
        )
    num_heads = fields.integer("medusa_num_heads", maximum=MOST_HEADS)
    num_layers = fields.integer("medusa_num_layers", 1, maximum=MOST_LAYERS)
    if not any(folder.glob("*.safetensors")):
        raise ModelLoadError(f"{name} has no *.safetensors", hint=CONVERT)
    files = TensorFiles(read_safetensors(weight_files(folder)))
    own_outputs = f"0.{num_layers}.weight" in files
    _check_sizes(name, files, num_layers if own_outputs else None, target)
    expected = _parameters(num_heads, num_layers, target, own_outputs=own_outputs)
    files.check(expected, lambda _: False)
    check_memory(
        sum(math.prod(each.shape) for each in expected) * target.dtype.itemsize, target.device
    )
    parameters = StoredParameters(expected, files, target.dtype, target.device)
    return _heads(parameters, num_heads, num_layers, target, own_outputs=own_outputs)


def _check_sizes(name: str, files: TensorFiles, output: int | None, target: LanguageModel) -> None:
    """Refuse heads of another model, with the difference; layer ``output`` scores tokens."""
    hidden, vocabulary = target.spec.hidden_size, target.spec.vocab_size
    shape = files.shape("0.0.linear.weight")
    if shape is not None and shape != (hidden, hidden):
        raise ConfigError(
            f"the Medusa heads {name} are for a hidden size of {shape[-1]}, the target's is"
            f" {hidden}",
            hint=FIT,
        )
    shape = None if output is None else files.shape(f"0.{output}.weight")
    if shape is not None and shape[0] != vocabulary:
        raise ConfigError(
            f"the Medusa heads {name} have a vocabulary of {shape[0]} tokens, the target"
            f" {vocabulary}",
            hint=FIT,
        )


def _parameters(
    num_heads: int, num_layers: int, target: LanguageModel, *, own_outputs: bool
) -> list[Parameter]:
    """Parameters to load: per layer one weight and one bias, those of all heads stacked."""
    hidden, vocabulary = target.spec.hidden_size, target.spec.vocab_size
    parameters = []
    for layer in range(num_layers):
        names = [f"{head}.{layer}.linear" for head in range(num_heads)]
        weights = tuple((f"{each}.weight", (hidden, hidden)) for each in names)
        biases = tuple((f"{each}.bias", (hidden,)) for each in names)
        parameters.append(Parameter(f"{layer}.weight", weights))
        parameters.append(Parameter(f"{layer}.bias", biases))
    for head in range(num_heads if own_outputs else 0):
        part = (f"{head}.{num_layers}.weight", (vocabulary, hidden))
        parameters.append(Parameter(f"output.{head}", (part,)))
    return parameters


def _heads(
    parameters: StoredParameters,
    num_heads: int,
    num_layers: int,
    target: LanguageModel,
    *,
    own_outputs: bool,
) -> MedusaHeads:
    hidden = target.spec.hidden_size
    layers, nbytes = list[ResidualLayer](), 0
    for layer in range(num_layers):
        weight = parameters.pop(f"{layer}.weight").view(num_heads, hidden, hidden)  # [.., out, in]
        bias = parameters.pop(f"{layer}.bias").view(num_heads, 1, hidden)
        layers.append(_layer(weight, bias, target))
        nbytes += weight.nbytes + bias.nbytes
    if not own_outputs:
        return MedusaHeads(num_heads, layers, [target.logits], nbytes)
    outputs = [
        make_linear(parameters.pop(f"output.{head}"), None, None, target.kernels)
        for head in range(num_heads)
    ]
    nbytes += sum(output.nbytes for output in outputs)
    return MedusaHeads(num_heads, layers, [output.wide for output in outputs], nbytes)


def _layer(weight: Tensor, bias: Tensor, target: LanguageModel) -> ResidualLayer:
    """A layer of all heads: weights ``[heads, out, in]``, biases ``[heads, 1, out]``."""
    heads = [
        make_linear(each, own_bias, None, target.kernels)
        for each, own_bias in zip(weight, bias.squeeze(1))
    ]
    if any(head.kernel_call is not None for head in heads):
        return LayerByHead(heads)
    return StackedLayer(weight.transpose(1, 2).contiguous(), bias)
