"""A GGUF file, or several that belong together, as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.file import GgufFile
from twostroke.checkpoints.gguf.metadata import Metadata
from twostroke.checkpoints.gguf.model_config import (
    architecture_of,
    read_config,
    read_generation_defaults,
)
from twostroke.checkpoints.gguf.split_files import join_tensors, read_gguf_parts
from twostroke.checkpoints.gguf.tensor_names import rename_tensors
from twostroke.checkpoints.gguf.vocabulary import end_tokens, read_tokenizer
from twostroke.text.tokenizer import Tokenizer


class GgufCheckpoint:
    """A ``Checkpoint``; heads are read when first asked for, once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _parts(self) -> list[GgufFile]:
        return read_gguf_parts(self.path)

    @cached_property
    def _metadata(self) -> Metadata:
        return Metadata(self._parts[0].metadata, self._parts[0].path)

    @cached_property
    def _tensors(self) -> dict[str, StoredTensor]:
        return join_tensors(self._parts)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_config(self._metadata, self._tensors)

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        return read_generation_defaults(self._metadata, end_tokens(self._metadata))

    @property
    def files(self) -> list[Path]:
        return [part.path for part in self._parts]

    def tensors(self) -> Mapping[str, StoredTensor]:
        return rename_tensors(self._tensors, architecture_of(self._metadata), self.config)

    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self._metadata)
