"""Reads a checkpoint's multi-token-prediction head, which lies beside the weights of its layers."""

from __future__ import annotations

import math

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.errors import ConfigError
from twostroke.models.decoder import Decoder
from twostroke.models.multi_token_predictor import MultiTokenPredictor, predictor_parameters
from twostroke.models.registry import decoder_family
from twostroke.models.stored_names import with_stored_experts
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import StoredParameters, check_memory


def load_predictor(
    checkpoint: Checkpoint, target: Decoder, max_length: int, quantization: str | None
) -> MultiTokenPredictor:
    """The head in a checkpoint, in the target's precision and on its device.

    Args:
        max_length: Longest request in tokens; sizes the rotary table.
        quantization: The target's.

    Raises:
        ConfigError: The checkpoint, or its architecture, has none.
        ModelLoadError: Tensors of it are missing or of the wrong shape.
        InsufficientMemoryError: It exceeds the free memory.
    """
    family = decoder_family(target.spec.model_type)
    files = TensorFiles(checkpoint.tensors())
    first = f"{family.predictor}fc.weight"
    if not family.predictor or first not in files:
        missing = f"{first} is missing" if family.predictor else target.spec.model_type
        raise ConfigError(
            f"--speculation mtp: {checkpoint.path.name} has no multi-token-prediction head"
            f" ({missing})",
            hint="choose another method: ngram, suffix, draft, early-exit or medusa",
        )
    layers = [f"{family.predictor}layers.0."]
    family = with_stored_experts(family, layers, files)
    expected = predictor_parameters(family, target.spec)
    files.check(expected, lambda name: not name.startswith(family.predictor))
    check_memory(
        sum(math.prod(each.shape) for each in expected) * target.dtype.itemsize, target.device
    )
    parameters = StoredParameters(expected, files, target.dtype, target.device)
    return MultiTokenPredictor(target, family, parameters, max_length, quantization)
