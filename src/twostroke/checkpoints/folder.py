"""A folder as Hugging Face lays it out: ``config.json``, safetensors, ``tokenizer.json``."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.quantised.modules import join_quantised
from twostroke.checkpoints.quantised.read_scheme import read_scheme
from twostroke.core.errors import ModelLoadError, panic_text
from twostroke.model_spec.generation_config import read_generation
from twostroke.model_spec.json_files import MODELOPT_FILE, read_config_files
from twostroke.model_spec.model_files import weight_files
from twostroke.text.tokenizer import Tokenizer


class FolderCheckpoint:
    """A ``Checkpoint`` whose ``config.json`` may be missing: adapters and heads have none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_config_files(self.path) if (self.path / "config.json").is_file() else {}

    @property
    def generation(self) -> Mapping[str, Any]:
        return read_generation(self.path)

    @property
    def files(self) -> list[Path]:
        beside = self.path / MODELOPT_FILE
        more = [beside] if beside.is_file() else []
        return [self.path / "config.json", *more, *weight_files(self.path)]

    def tensors(self) -> Mapping[str, StoredTensor]:
        tensors = read_safetensors(weight_files(self.path))
        scheme = read_scheme(self.config)
        return tensors if scheme is None else join_quantised(tensors, scheme)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.path)


def read_safetensors(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """Where the tensors of all files lie. Raises ModelLoadError if one is broken."""
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="numpy"):
                pass  # the library has checked every size and offset
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header: dict[str, Any] = json.loads(file.read(size))
        except (SafetensorError, OSError) as error:
            hint = "the file is broken or incomplete; download it again"
            text = panic_text(error)
            raise ModelLoadError(f"cannot read {path}: {text}", hint=hint) from error
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            shape = tuple(entry["shape"])
            tensors[name] = StoredTensor(entry["dtype"], shape, path, 8 + size + begin, end - begin)
    return tensors
