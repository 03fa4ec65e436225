"""JSON files of a checkpoint, read with errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twostroke.core.errors import ModelLoadError
from twostroke.core.file_errors import reason


def read_object(path: Path, hint: str = "download or copy the checkpoint again") -> dict[str, Any]:
    """The JSON object in a file. Raises ModelLoadError with ``hint``."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {reason(error)}", hint=hint) from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds no JSON object", hint=hint)
    return value
