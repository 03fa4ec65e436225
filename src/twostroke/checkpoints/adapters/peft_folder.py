"""A LoRA adapter's folder: its configuration, and where its matrices lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from twostroke.checkpoints.adapters.peft_config import MAX_RANK, PeftConfig, read_peft_config
from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.folder import read_safetensors
from twostroke.core.errors import ModelLoadError

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_FORMATS = ("F32", "F16", "BF16")
_CHUNK = 2**22  # bytes that are hashed at a time


@dataclass(frozen=True, slots=True)
class LowRankPair:
    """The two matrices of one module: ``y += scale * (x A^T) B^T``.

    Attributes:
        down: A, ``[rank, inputs]``.
        up: B, ``[outputs, rank]``.
    """

    down: StoredTensor
    up: StoredTensor
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """An adapter as it is stored.

    Attributes:
        pairs: By modules' names in a checkpoint, such as ``model.layers.0.self_attn.q_proj``.
        digest: A hash of its files' contents, in hexadecimal digits.
    """

    path: Path
    config: PeftConfig
    pairs: Mapping[str, LowRankPair]
    digest: str

    @property
    def rank(self) -> int:
        """The highest of its modules."""
        return max(pair.rank for pair in self.pairs.values())


def read_adapter(folder: Path, max_rank: int = MAX_RANK) -> StoredAdapter:
    """Read an adapter's headers; every tensor of it is one that is used.

    Raises:
        ModelLoadError: A file is missing or broken, or says something that is not supported; a
            tensor is none of LoRA's, lacks its other half, or has another shape than the
            configuration says.
    """
    config = read_peft_config(folder, max_rank)
    weights = folder / WEIGHTS
    if not weights.is_file():
        what = f"{folder} has no {WEIGHTS}"
        if (folder / _PICKLE).is_file():
            what += f", and {_PICKLE} is a pickle, which is not read"
        raise ModelLoadError(what, hint="save the adapter with safe_serialization=True")
    halves: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_safetensors([weights]).items():
        module, side = _parts_of(name)
        if tensor.format not in _FORMATS:
            raise _wrong(name, f"it is stored as {tensor.format}, not as {', '.join(_FORMATS)}")
        if not config.has(module):
            raise _wrong(name, "target_modules or layers_to_transform leave its module out")
        halves.setdefault(module, {})[side] = tensor
    if not halves:
        raise ModelLoadError(f"{weights} holds no tensors", hint="the adapter was not saved whole")
    pairs = {module: _pair(config, module, sides) for module, sides in halves.items()}
    return StoredAdapter(folder, config, pairs, _digest(folder))


def _parts_of(name: str) -> tuple[str, str]:
    """The module and the side, ``A`` or ``B``, of a tensor."""
    match = _TENSOR.fullmatch(name)
    if match is not None:
        return match["module"], match["side"]
    reasons = {
        "lora_embedding_": "adapted embeddings are not supported",
        "lora_magnitude_vector": "DoRA is not supported",
        ".modules_to_save.": "whole layers of its own (modules_to_save) are not supported",
        ".bias": "adapted biases are not supported",
    }
    reason = (why for part, why in reasons.items() if part in name)
    raise _wrong(name, next(reason, "it is none of LoRA's tensors by PEFT's names"))


def _pair(config: PeftConfig, module: str, sides: Mapping[str, StoredTensor]) -> LowRankPair:
    for side in "AB":
        if side not in sides:
            raise _wrong(_name(module, side), "it is missing")
    down, up, rank = sides["A"], sides["B"], config.rank_of(module)
    for side, tensor, axis in (("A", down, 0), ("B", up, 1)):
        if len(tensor.shape) != 2 or tensor.shape[axis] != rank or 0 in tensor.shape:
            raise _wrong(
                _name(module, side), f"its shape is {tensor.shape}, and its rank should be {rank}"
            )
    return LowRankPair(down, up, rank, config.scale_of(module))


def _name(module: str, side: str) -> str:
    return f"base_model.model.{module}.lora_{side}.weight"


def _wrong(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"the adapter's tensor {name[:200]} cannot be used: {why}",
        hint="merge the adapter into the model's weights, or train it without this part",
    )


def _digest(folder: Path) -> str:
    """A name for the contents: cached keys and values must not outlive them."""
    digest = blake2b(digest_size=16)
    for file in ("adapter_config.json", WEIGHTS):
        try:
            with (folder / file).open("rb") as stream:
                digest.update(f"{file}\0".encode())
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise ModelLoadError(f"cannot read {folder / file}: {error}") from error
    return digest.hexdigest()
