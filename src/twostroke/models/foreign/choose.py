"""Whose code runs a checkpoint: ours, or that of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from twostroke.core.config import ModelImpl
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.model_spec.config_fields import short
from twostroke.models.catalogue import EXTRA
from twostroke.models.registry import IMAGE_MODELS, MODEL_TYPES


def runs_by_transformers(raw: Mapping[str, Any], model_impl: ModelImpl) -> bool:
    """Whether a ``config.json`` is for transformers' code; transformers is not imported.

    Raises:
        ConfigError: It is asked for, and not installed.
        ModelLoadError: Only its code could run it, and it is not installed.
    """
    model_type = raw.get("model_type")
    if model_impl == "twostroke" or not isinstance(model_type, str):
        return False
    is_installed = find_spec("transformers") is not None
    if model_impl == "transformers":
        if not is_installed:
            raise ConfigError("--model-impl transformers needs transformers", hint=EXTRA)
        return True
    if model_type in MODEL_TYPES or model_type in IMAGE_MODELS:
        return False
    if not is_installed:
        raise ModelLoadError(
            f"unknown architecture: model_type is {short(model_type)}",
            hint=f"{EXTRA} runs other decoders by transformers' code; without it: "
            + ", ".join(MODEL_TYPES),
        )
    return True
