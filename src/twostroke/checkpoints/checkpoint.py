"""The seam between a model's files and what loads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from twostroke.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies.

    Attributes:
        format: Number format of its elements, by its file's name for it: ``F32``, ``U8``, ``Q8_0``.
        shape: With the contiguous dimension last.
        path, offset, nbytes: Its bytes, all of which the file has.
        heads: In this many heads, rows of the first half and of the second take turns; 0: all
            rows are in order.
        shift: What was added to each element.
    """

    format: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int
    heads: int = 0
    shift: float = 0.0


class Checkpoint(Protocol):
    """A model as it is stored. Nothing of it changes, and no method keeps a file open.

    Attributes:
        path: The folder or the file; what belongs to no format (``modules.json``) lies in it.
        config: What ``config.json`` says, or would say; empty where nothing is stated.
        generation: The contents of ``generation_config.json``.
        files: All that the model's outputs follow from, for a fingerprint.

    Every attribute and method raises ``ModelLoadError`` where a file is missing, broken or
    contradicts itself.
    """

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def generation(self) -> Mapping[str, Any]: ...

    @property
    def files(self) -> list[Path]: ...

    def tensors(self) -> Mapping[str, StoredTensor]:
        """All tensors, by the names and in the shapes of Hugging Face."""
        ...

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer, with the chat templates."""
        ...
