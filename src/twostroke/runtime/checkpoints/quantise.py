"""Writes a copy of a checkpoint whose linear layers are rounded to integers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from twostroke.checkpoints.checkpoint import Checkpoint, StoredTensor
from twostroke.checkpoints.folder import FolderCheckpoint
from twostroke.checkpoints.quantised.read_scheme import read_scheme
from twostroke.checkpoints.quantised.written import Quantised
from twostroke.core.errors import ConfigError, ModelLoadError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.layers.stored_weights import StoredWeight
from twostroke.model_spec.model_files import weight_files
from twostroke.model_spec.spec import ModelSpec
from twostroke.models.decoder import Decoder
from twostroke.models.family import DecoderFamily
from twostroke.models.foreign.choose import runs_by_transformers
from twostroke.models.parameters import Parameter
from twostroke.models.support import read_runnable
from twostroke.runtime.checkpoints.rounding import can_round, quantization_config, round_matrix
from twostroke.runtime.checkpoints.tensor_files import TensorFiles
from twostroke.runtime.weights import match_checkpoint

INDEX = "model.safetensors.index.json"
_COPIED = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_HEAD = "head"
Advance = Callable[[int], None]  # called with each number of bytes that were read


def check_quantisable(checkpoint: Checkpoint) -> None:
    """Raise ModelLoadError, or ConfigError, if ``quantise`` cannot take such a checkpoint."""
    raw = checkpoint.config
    if not isinstance(checkpoint, FolderCheckpoint):
        raise ConfigError(
            f"{checkpoint.path.name} is a GGUF file, which is rounded already or has no layout for"
            " it",
            hint="give the safetensors folder that it was made from",
        )
    if read_scheme(raw) is not None or raw.get("quantization_config"):
        raise ConfigError(
            f"{checkpoint.path} is quantised already",
            hint="rounding twice adds both errors: give the bfloat16 version of this model",
        )
    if runs_by_transformers(raw, "auto"):
        raise ConfigError(
            f"{raw.get('model_type')!r} runs by transformers' code, which takes no quantised"
            " checkpoints",
            hint="twostroke models lists the families that can be quantised",
        )


def quantise(
    checkpoint: Checkpoint, to: str, folder: Path, advance: Advance, *, head: bool = False
) -> Quantised:
    """Write ``folder``, which is there only when all of it is.

    Rounded are the layers that ``--quantization`` rounds, where they are tensors of their own:
    experts that share one are left. The copies of all other tensors are exact.

    Args:
        to: ``int4`` or ``int8``, see ``rounding.py``.
        head: Whether to round the head too, if the embedding does not serve as it.

    Raises:
        ConfigError, ModelLoadError: The checkpoint cannot be rounded, or ``folder`` not written.
    """
    check_quantisable(checkpoint)
    tensors, spec = checkpoint.tensors(), read_runnable(checkpoint)
    family, spec, expected = match_checkpoint(TensorFiles(tensors), spec, ranks=False)
    linears = _list_linears(spec, family, expected)
    heads = {name for one in expected if one.name == _HEAD for name, _ in one.parts}
    chosen = linears if head else linears - heads
    rounded = {name for name in chosen if can_round(tensors[name].shape)}
    if not rounded:
        raise ModelLoadError(
            "no linear layer of this model can be rounded",
            hint="layers must be matrices of their own, with inputs a multiple of 32",
        )
    before = sum(stored.nbytes for stored in tensors.values())
    with _written(folder, before) as partial:
        errors, index = dict[str, float](), dict[str, str]()
        for file in weight_files(checkpoint.path):
            written = dict[str, Tensor]()
            for name, tensor in _read(file, tensors):
                if name in rounded:
                    module = name.removesuffix(".weight")
                    own = round_matrix(tensor, to)
                    errors[module] = own.error
                    written |= {f"{module}.{last}": part for last, part in own.tensors.items()}
                else:
                    written[name] = tensor
                advance(tensor.nbytes)
            save_file(
                {name: tensor.contiguous() for name, tensor in written.items()},
                partial / file.name,
                metadata={"format": "pt"},
            )
            index |= dict.fromkeys(written, file.name)
        kept = sorted(
            name.removesuffix(".weight") for name in _matrices(tensors) if name not in rounded
        )
        after = _write_rest(checkpoint, partial, quantization_config(to, kept), index)
    left = [module for module in kept if f"{module}.weight" in linears]
    return Quantised(errors, left, before, after)


def _list_linears(spec: ModelSpec, family: DecoderFamily, expected: list[Parameter]) -> set[str]:
    """The checkpoint's names of what ``--quantization`` rounds, from layers on the meta device."""
    source = _NotedSource(expected)
    Decoder(spec, family, source, 1)
    return source.names


class _NotedSource:
    """Parameters without contents, which notes those that a layer may keep in another format."""

    def __init__(self, expected: list[Parameter]) -> None:
        self._expected = {one.name: one for one in expected}
        self.names = set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._expected

    def pop(self, name: str) -> Tensor:
        one = self._expected.pop(name)
        dtype = torch.uint8 if one.is_bytes else torch.bfloat16
        return torch.empty(one.shape, dtype=dtype, device="meta")

    def pop_kept(self, name: str, *, whole: bool) -> list[StoredWeight]:
        """None is kept: it is only noted; see ``KeptSource``."""
        if name.endswith(".weight") or name == _HEAD:
            self.names |= {part for part, _ in self._expected[name].parts}
        return []


def _matrices(tensors: Mapping[str, StoredTensor]) -> Iterator[str]:
    """All that a reader may take for a linear layer."""
    for name, stored in tensors.items():
        if name.endswith(".weight") and len(stored.shape) == 2:
            yield name


def _read(file: Path, tensors: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (it is no mapping)
            if name in tensors:
                yield name, opened.get_tensor(name)


def _write_rest(
    checkpoint: Checkpoint, folder: Path, stated: dict[str, Any], index: Mapping[str, str]
) -> int:
    """All but the tensors; returns how many bytes these take."""
    for pattern in _COPIED:
        for file in checkpoint.path.glob(pattern):
            if not (file.name.endswith(".index.json") or (folder / file.name).exists()):
                shutil.copyfile(file, folder / file.name)
    config = {**checkpoint.config, "quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    size = sum(stored.nbytes for stored in FolderCheckpoint(folder).tensors().values())
    if len(set(index.values())) > 1:
        table = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
        (folder / INDEX).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return size


@contextmanager
def _written(folder: Path, most_bytes: int) -> Iterator[Path]:
    """A folder beside, which takes this one's place at the end, and goes if there is an error."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists, and is not empty", hint="give another -o")
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)  # of one that was cut off
        partial.mkdir(parents=True)
        free = shutil.disk_usage(partial).free
        if free < most_bytes // 2:
            raise ConfigError(
                f"{folder} needs up to {format_bytes(most_bytes // 2)}, and"
                f" {format_bytes(free)} are free there",
                hint="free some room, or give another -o",
            )
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
