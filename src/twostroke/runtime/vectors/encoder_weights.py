"""Reads the safetensors of an encoder's checkpoint."""

from __future__ import annotations

import torch

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.model_spec.vectors.encoder_spec import EncoderSpec
from twostroke.models.encoder import Encoder, encoder_parameters, is_needless
from twostroke.models.parameters import Parameter
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import StoredParameters, check_memory, choose_dtype


def load_encoder(
    checkpoint: Checkpoint, spec: EncoderSpec, dtype: str, device: torch.device
) -> Encoder:
    """Load a checkpoint, whose names may begin with the model's or not.

    Raises:
        ModelLoadError: Tensors are missing, unexpected or of the wrong shape; a file is broken;
            pickles only.
        InsufficientMemoryError: The weights exceed the free memory.
    """
    files = TensorFiles(checkpoint.tensors())
    expected = match_encoder(files, spec)
    chosen = choose_dtype(spec.dtype or files.stored_dtype(expected), dtype)
    elements = sum(torch.Size(parameter.shape).numel() for parameter in expected)
    weight_bytes = elements * chosen.itemsize
    check_memory(weight_bytes, device)
    return Encoder(spec, StoredParameters(expected, files, chosen, device), weight_bytes)


def match_encoder(files: TensorFiles, spec: EncoderSpec) -> list[Parameter]:
    """The parameters, by the names that the checkpoint uses. Raises ModelLoadError."""
    bare = encoder_parameters(spec, prefixed=False)
    has_bare_names = bare[0].parts[0][0] in files
    expected = bare if has_bare_names else encoder_parameters(spec, prefixed=True)
    files.check(expected, is_needless)
    return expected
