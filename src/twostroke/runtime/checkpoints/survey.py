"""Whether a checkpoint runs on this machine, and how, before its weights are read."""

from __future__ import annotations

import torch

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.core.config import EngineConfig
from twostroke.kernels.library import load_library
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.vectors.encoder_spec import is_encoder, parse_encoder
from twostroke.model_spec.vectors.score_head import has_score_head
from twostroke.models.catalogue import CheckpointSurvey, path_of
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.foreign.choose import runs_by_transformers
from twostroke.models.parameters import Parameter
from twostroke.models.support import read_runnable
from twostroke.observability.profile import NO_PROFILE
from twostroke.runtime.checkpoints.foreign import load_foreign_target
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.device import resolve_device
from twostroke.runtime.vectors.encoder_weights import match_encoder
from twostroke.runtime.weights import (
    choose_dtype,
    decoder_dtype,
    kept_as_stored,
    match_checkpoint,
    spared_bytes,
)


def read_survey(checkpoint: Checkpoint) -> CheckpointSurvey:
    """Read the configuration and the headers of the weights, and compare them with each other.

    Raises:
        ModelLoadError: The checkpoint does not run; it names the field, or the tensor.
    """
    raw = checkpoint.config
    if is_encoder(raw):
        return _survey_encoder(checkpoint)
    if runs_by_transformers(raw, "auto"):
        return _survey_foreign(checkpoint)
    spec = read_runnable(checkpoint)
    files = TensorFiles(checkpoint.tensors())
    family, spec, expected = match_checkpoint(files, spec, scores_pairs=has_score_head(raw))
    device = resolve_device("auto")
    dtype = decoder_dtype(spec, expected, files, "auto", device)
    stored = files.dtypes
    in_bytes = _count([each for each in expected if each.is_bytes])
    count = spec.num_parameters if in_bytes else _count(expected)
    elements = _count(expected) - in_bytes
    name = str(dtype).removeprefix("torch.")
    kept = kept_as_stored(expected, files, dtype, device)
    has_kernels = device.type == "cpu" and load_library() is not None
    return CheckpointSurvey(
        model_type=spec.model_type,
        path=path_of(spec, name, kernels=has_kernels),
        device=str(device),
        dtype=name,
        stored=stored,
        parameters=count,
        weight_bytes=elements * dtype.itemsize + in_bytes - spared_bytes(kept, files, dtype),
        kv_bytes_per_token=int(spec.kv_bytes_per_token(name)),
        state_bytes=_state_bytes(spec, family, expected, dtype) if spec.state_bytes() else 0,
        context_length=spec.context_length,
    )


def _count(expected: list[Parameter]) -> int:
    """Elements of the checkpoint's tensors; branches side by side read one norm."""
    shapes = {name: shape for parameter in expected for name, shape in parameter.parts}
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def _state_bytes(
    spec: ModelSpec, family: DecoderFamily, expected: list[Parameter], dtype: torch.dtype
) -> int:
    """Bytes of one request's recurrent state, from layers built on the meta device."""
    source = {each.name: torch.empty(each.shape, device="meta", dtype=dtype) for each in expected}
    shapes = Decoder(spec, family, source, 1).state_shapes
    return sum(shape.nbytes for layer in shapes for shape in layer)


def _survey_foreign(checkpoint: Checkpoint) -> CheckpointSurvey:
    """Its weights are read: what transformers' code does with tokens is seen from a pass."""
    config = EngineConfig.from_flat({"model": str(checkpoint.path)})
    device = resolve_device("auto")
    target = load_foreign_target(config, checkpoint, device, NO_PROFILE)
    assert target is not None, "it runs by transformers"
    files = TensorFiles(checkpoint.tensors())
    count, stored = files.num_elements, files.dtypes
    name = str(target.dtype).removeprefix("torch.")
    return CheckpointSurvey(
        model_type=target.spec.model_type,
        path="transformers",
        device=str(device),
        dtype=name,
        stored=stored,
        parameters=count,
        weight_bytes=target.weight_bytes,
        kv_bytes_per_token=int(target.spec.kv_bytes_per_token(name)),
        state_bytes=0,
        context_length=target.spec.context_length,
    )


def _survey_encoder(checkpoint: Checkpoint) -> CheckpointSurvey:
    spec = parse_encoder(checkpoint.config)
    files = TensorFiles(checkpoint.tensors())
    expected = match_encoder(files, spec)
    dtype = choose_dtype(spec.dtype or files.stored_dtype(expected), "auto")
    stored = files.dtypes
    count = _count(expected)
    return CheckpointSurvey(
        model_type=spec.model_type,
        path="layer by layer",
        device=str(resolve_device("auto")),
        dtype=str(dtype).removeprefix("torch."),
        stored=stored,
        parameters=count,
        weight_bytes=count * dtype.itemsize,
        kv_bytes_per_token=0,
        state_bytes=0,
        context_length=spec.max_length,
    )
