"""JSON files of a checkpoint, read with errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.core.files import read_text, reason

HINT = "download or copy the checkpoint again"
# What ModelOpt says of its quantization.
MODELOPT_FILE = "hf_quant_config.json"


def read_object(path: Path, hint: str = HINT) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelLoadError with ``hint``."""
    value = _read(path, hint)
    if not isinstance(value, dict):
        raise ModelLoadError(f"cannot read {path}: it holds no JSON object", hint=hint)
    return value


def read_config_files(folder: Path, hint: str = HINT) -> dict[str, Any]:
    """``config.json`` of a folder, and what ModelOpt says beside it alone in older versions.

    Raises:
        ModelLoadError: A file is missing or broken.
    """
    config = read_object(folder / "config.json", hint)
    is_whole = not config or config.get("quantization_config")
    if is_whole or not (folder / MODELOPT_FILE).is_file():
        return config
    inner = read_object(folder / MODELOPT_FILE).get("quantization")
    if isinstance(inner, Mapping):
        inner = {**inner, "quant_method": "modelopt"}
    return {**config, "quantization_config": inner}


def read_values(path: Path, hint: str) -> list[Any]:
    """The JSON array in a file. Raises ModelLoadError with ``hint``."""
    value = _read(path, hint)
    if not isinstance(value, list):
        raise ModelLoadError(f"cannot read {path}: it holds no JSON array", hint=hint)
    return value


def _read(path: Path, hint: str) -> Any:
    try:
        return json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {reason(error)}", hint=hint) from error
