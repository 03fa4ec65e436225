"""From ``model_type`` to the class that implements it, imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from twostroke.core.errors import ModelLoadError

if TYPE_CHECKING:
    from twostroke.models.decoder import Decoder

_CLASSES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def model_class(model_type: str) -> type[Decoder]:
    """The class of an architecture. Raises ModelLoadError for an unknown one."""
    if model_type not in _CLASSES:
        hint = "supported architectures: " + ", ".join(_CLASSES)
        raise ModelLoadError(f"unknown architecture: model_type is {model_type!r}", hint=hint)
    found: type[Decoder] = getattr(
        import_module(f"twostroke.models.{model_type}"), _CLASSES[model_type]
    )
    return found
