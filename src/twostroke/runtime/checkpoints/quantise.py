"""Writes a copy of a checkpoint whose linear layers are rounded to integers."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twostroke.checkpoints.checkpoint import Checkpoint, StoredTensor
from twostroke.checkpoints.folder import FolderCheckpoint
from twostroke.checkpoints.quantised.read_scheme import read_scheme
from twostroke.checkpoints.quantised.written import Quantised
from twostroke.core.errors import ConfigError, ModelLoadError, panic_text
from twostroke.core.files import reason
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.kernels.library import GROUP
from twostroke.layers.stored_blocks import KeptWeight
from twostroke.model_spec.model_files import weight_files
from twostroke.model_spec.spec import ModelSpec
from twostroke.model_spec.vectors.encoder_spec import is_encoder
from twostroke.model_spec.vectors.score_head import has_score_head
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
_BESIDE = 2**25  # bytes for tokenizer and the like
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
    if is_encoder(raw) or has_score_head(raw):
        raise ConfigError(
            f"{checkpoint.path} is no language model: it makes vectors or scores",
            hint="--quantization int8 of twostroke serve rounds a decoder that makes vectors",
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
    family, spec, expected = match_checkpoint(TensorFiles(tensors), spec, scores_pairs=False)
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
    with _written(folder, _needed_bytes(tensors, rounded, to)) as partial:
        errors, index = dict[str, float](), dict[str, str]()
        for file in weight_files(checkpoint.path):
            parts = _read(file, tensors, advance)
            written = {
                name: part for own in _round(parts, rounded, to, errors) for name, part in own
            }
            save_file(written, partial / file.name, metadata={"format": "pt"})
            index |= dict.fromkeys(written, file.name)
        kept = _unrounded(tensors, rounded)
        # Others' readers take a head that is tied to the embedding for a linear layer.
        tied = [] if "lm_head.weight" in tensors else ["lm_head"]
        stated = quantization_config(to, [*kept, *tied])
        after = _write_rest(checkpoint, partial, stated, index)
    in_model = linears | {name for one in expected if len(one.shape) > 2 for name, _ in one.parts}
    left = [module for module in kept if any(name.startswith(f"{module}.") for name in in_model)]
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

    def pop_kept(self, name: str, *, whole: bool) -> list[KeptWeight]:
        """None is kept: it is only noted; see ``KeptSource``."""
        if name.endswith(".weight") or name == _HEAD:
            self.names |= {part for part, _ in self._expected[name].parts}
        return []


def _unrounded(tensors: Mapping[str, StoredTensor], rounded: Collection[str]) -> list[str]:
    """Modules that a reader may take for linear layers, or for experts that share a tensor."""
    modules = set[str]()
    for name, stored in tensors.items():
        if name in rounded or len(stored.shape) < 2:
            continue
        module, _, last = name.rpartition(".")
        is_stack = len(stored.shape) > 2 and 1 not in stored.shape  # or it is a convolution
        if last == "weight" or is_stack:
            modules.add(module)
    return sorted(modules)


def _read(file: Path, tensors: Collection[str], advance: Advance) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 (it is no mapping)
            if name in tensors:
                tensor = opened.get_tensor(name)
                yield name, tensor
                advance(tensor.nbytes)


def _round(
    tensors: Iterable[tuple[str, Tensor]],
    rounded: Collection[str],
    to: str,
    errors: dict[str, float],
) -> Iterator[list[tuple[str, Tensor]]]:
    """What is stored in place of each tensor; the errors of rounded ones are noted."""
    for name, tensor in tensors:
        if name not in rounded:
            yield [(name, tensor.contiguous())]
            continue
        if not tensor.isfinite().all():
            raise ModelLoadError(
                f"{name} has numbers that are infinite, or none",
                hint="the checkpoint is broken; download it again",
            )
        module, own = name.removesuffix(".weight"), round_matrix(tensor, to)
        errors[module] = own.error
        yield [(f"{module}.{last}", part.contiguous()) for last, part in own.tensors.items()]


def _write_rest(
    checkpoint: Checkpoint, folder: Path, stated: dict[str, Any], index: Mapping[str, str]
) -> int:
    """All but the tensors; returns how many bytes these take."""
    for pattern in _COPIED:
        for file in checkpoint.path.glob(pattern):
            if not (file.name.endswith(".index.json") or (folder / file.name).exists()):
                shutil.copyfile(file, folder / file.name)
    for name in _folders_beside(checkpoint.path):
        shutil.copytree(checkpoint.path / name, folder / name)
    config = {**checkpoint.config, "quantization_config": stated}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in {*index.values()}:  # the library lets the owner alone read them
        shutil.copymode(folder / "config.json", folder / name)
    size = sum(stored.nbytes for stored in FolderCheckpoint(folder).tensors().values())
    if set(index.values()) != {"model.safetensors"}:
        table = {"metadata": {"total_size": size}, "weight_map": dict(sorted(index.items()))}
        (folder / INDEX).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return size


def _folders_beside(path: Path) -> Iterator[str]:
    """What belongs to the model in folders: chat templates, and layers that make vectors."""
    names = {"additional_chat_templates"}
    if (path / "modules.json").is_file():
        layers = json.loads((path / "modules.json").read_text(encoding="utf-8"))
        names |= {str(layer.get("path", "")) for layer in layers}
    for name in sorted(names):
        if name and Path(name).name == name and (path / name).is_dir():
            yield name


@contextmanager
def _written(folder: Path, needed: int) -> Iterator[Path]:
    """A folder in this one, whose contents move up at the end; if there is an error, all goes."""
    was_there = folder.exists()
    try:
        if was_there and any(folder.iterdir()):
            raise ConfigError(f"{folder} exists, and is not empty", hint="give another -o")
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise ConfigError(
                f"{folder} needs {format_bytes(needed)}, and {format_bytes(free)} are free there",
                hint="free some room, or give another -o",
            )
        partial = folder / ".partial"
        partial.mkdir()
        try:
            yield partial
            # Until config.json is there, it is no checkpoint.
            for file in sorted(partial.iterdir(), key=lambda file: file.name == "config.json"):
                file.rename(folder / file.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        why = reason(error) if isinstance(error, OSError) else panic_text(error)
        raise ConfigError(f"cannot write {folder}: {why}") from error
    finally:
        if not was_there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _needed_bytes(tensors: Mapping[str, StoredTensor], rounded: Collection[str], to: str) -> int:
    """Room for all tensors, and for what lies beside them."""
    bits = {"int4": 4 + 16 / GROUP, "int8": 8.1}[to]
    sizes = (
        math.prod(stored.shape) * bits / 8 if name in rounded else stored.nbytes
        for name, stored in tensors.items()
    )
    return int(sum(sizes)) + _BESIDE
