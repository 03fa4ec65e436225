"""From ``model_type`` to the family that implements it, imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from twostroke.core.errors import ModelLoadError

if TYPE_CHECKING:
    from twostroke.models.family import DecoderFamily

# Each has a file of its name.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


def decoder_family(model_type: str) -> DecoderFamily:
    """The family of an architecture. Raises ModelLoadError for an unknown one."""
    if model_type not in MODEL_TYPES:
        hint = "supported architectures: " + ", ".join(MODEL_TYPES)
        raise ModelLoadError(f"unknown architecture: model_type is {model_type!r}", hint=hint)
    family: DecoderFamily = import_module(f"twostroke.models.{model_type}").FAMILY
    return family
