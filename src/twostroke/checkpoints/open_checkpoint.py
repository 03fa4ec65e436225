"""From a model's name, or from where its files are, to its checkpoint."""

from __future__ import annotations

from pathlib import Path

from twostroke.checkpoints.checkpoint import Checkpoint
from twostroke.checkpoints.folder import FolderCheckpoint
from twostroke.checkpoints.gguf.gguf_checkpoint import GgufCheckpoint
from twostroke.core.files import is_file
from twostroke.model_spec.model_files import resolve_model


def find_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint of that name; arguments and errors as of ``resolve_model``."""
    return open_checkpoint(resolve_model(model, revision))


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at ``path``."""
    return GgufCheckpoint(path) if is_file(path) else FolderCheckpoint(path)
