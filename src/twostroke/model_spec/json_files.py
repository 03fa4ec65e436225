"""JSON files of a checkpoint, read with errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.core.files import read_text, reason


def read_object(path: Path, hint: str = "download or copy the checkpoint again") -> dict[str, Any]:
    """The JSON object in a file. Raises ModelLoadError with ``hint``."""
    value = _read(path, hint)
    if not isinstance(value, dict):
        raise ModelLoadError(f"cannot read {path}: it holds no JSON object", hint=hint)
    return value


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
