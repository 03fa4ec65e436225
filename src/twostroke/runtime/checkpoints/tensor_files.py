"""The tensors of a checkpoint's files, compared with what a model needs, and copied into it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.derived import DerivedTensor
from twostroke.checkpoints.gguf.dequantise import BLOCKWISE, SPLIT, dequantise
from twostroke.checkpoints.quantised.modules import QuantisedTensor
from twostroke.checkpoints.quantised.unpack import held_by, scaled_values
from twostroke.core.errors import ModelLoadError
from twostroke.core.flags.byte_sizes import format_bytes
from twostroke.kernels.library import GROUP, Library
from twostroke.layers.stored_blocks import KeptWeight, StoredBlocks
from twostroke.layers.stored_weights import PACKED_BITS, StoredWeight, inputs_together
from twostroke.models.parameters import Parameter
from twostroke.models.shards import NO_SHARDS, Shard

logger = logging.getLogger(__name__)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_STORED_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float32"}
_AS_STORED = {
    **{name: DTYPES[dtype] for name, dtype in _STORED_DTYPES.items()},
    "F64": torch.float64,
    "U8": torch.uint8,
}
_READABLE = (*_STORED_DTYPES, *BLOCKWISE)
# What kernels multiply with as it is stored, and their name for it.
KEPT_FORMATS = {name: "int4" if name == "Q4_0" else name.lower() for name in SPLIT}
_CHUNK = 2**22  # elements that are decoded at a time
_IN_CACHE = 2**17  # of formats that take several passes


class TensorFiles:
    """The tensors of a checkpoint, memory-mapped and looked up by name."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self._tensors = tensors
        self._maps: dict[Path, np.ndarray] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def check(self, expected: list[Parameter], is_needless: Callable[[str], bool]) -> None:
        """Compare names, shapes and types with what the model needs, by the files' headers.

        What is needless is ignored, such as a head where the embedding serves.
        """
        parts = {name: shape for parameter in expected for name, shape in parameter.parts}
        in_bytes = {name for one in expected if one.is_bytes for name, _ in one.parts}
        missing = [name for name in parts if name not in self._tensors]
        if missing:
            hint = "it is incomplete, or config.json belongs to another model"
            raise ModelLoadError(f"the checkpoint lacks {_some(missing)}", hint=hint)
        unexpected = [
            name
            for name in self._tensors
            if name not in parts and not is_needless(name) and not self._is_empty_bias(name)
        ]
        if unexpected:
            raise ModelLoadError(
                f"the checkpoint holds tensors that the model does not have: {_some(unexpected)}",
                hint=(
                    "config.json belongs to another model, or this variant of the architecture is"
                    " not supported"
                ),
            )
        for name, shape in parts.items():
            stored = self._tensors[name]
            if stored.shape != shape:
                raise ModelLoadError(
                    f"{name} in {stored.path.name} has shape {stored.shape}, expected {shape}",
                    hint="config.json and the weights do not belong together",
                )
            readable = ("U8",) if name in in_bytes else _READABLE
            is_readable = all(source.format in readable for source in _sources(stored))
            if not is_readable and (name in in_bytes or not isinstance(stored, QuantisedTensor)):
                raise ModelLoadError(
                    f"{name} in {stored.path.name} is stored as {stored.format}, which is not"
                    " supported",
                    hint="use the bfloat16, float16 or float32 version of this model",
                )

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of one tensor, if it is there."""
        return self._tensors[name].shape if name in self._tensors else None

    def stored_dtype(self, expected: list[Parameter]) -> str:
        """Precision of the first parameter, for checkpoints whose config.json does not say it."""
        return _STORED_DTYPES.get(self._tensors[expected[0].parts[0][0]].format, "bfloat16")

    @property
    def num_elements(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(stored.shape) for stored in self._tensors.values())

    @property
    def main_dtype(self) -> str:
        """The precision of the first tensor of real numbers; float32 where there is none."""
        return next((name for name in self.dtypes if name in DTYPES), "float32")

    @property
    def dtypes(self) -> list[str]:
        """Each precision in which tensors are stored, by name."""
        formats = {stored.format for stored in self._tensors.values()}
        return sorted(_STORED_DTYPES.get(name, name) for name in formats)

    def say_what_is_decoded(self, dtype: torch.dtype, kept: Sequence[Parameter] = ()) -> None:
        """Log that tensors take more memory than in their files, if some but ``kept`` do."""
        names = {name for parameter in kept for name, _ in parameter.parts}
        decoded = [each for name, each in self._tensors.items() if name not in names]
        packed = [each for each in decoded if each.format in BLOCKWISE or _is_quantised(each)]
        if packed:
            name = str(dtype).removeprefix("torch.")
            logger.warning(
                "%s: decoded to %s while it loads, %s in the file, %s in memory%s",
                ", ".join(sorted({each.format for each in packed})),
                name,
                format_bytes(sum(each.nbytes for each in packed)),
                format_bytes(sum(math.prod(each.shape) for each in packed) * dtype.itemsize),
                f"; activations are {name}, too" if any(map(_rounds_activations, packed)) else "",
            )

    def copy(self, name: str, target: Tensor, shard: Shard | None = None) -> None:
        """Write a tensor into ``target``, which has its shape, in any precision.

        Copied, not mapped: a file that is changed while the model runs must not change the model.

        Args:
            shard: What is wanted of it, in ``target``'s shape. Nothing else is read of tensors that
                are stored as plain numbers.
        """
        stored = self._tensors[name]
        if shard is not None:
            target.copy_(self._part(stored, name, shard))
            return
        if isinstance(stored, QuantisedTensor):
            self._unpack(stored, target)
            return
        if isinstance(stored, DerivedTensor):
            made = stored.make([self._floats(source) for source in stored.sources])
            target.copy_(torch.from_numpy(np.ascontiguousarray(made)))
            return
        data = self._bytes(stored)
        is_plain = not (stored.format in BLOCKWISE or stored.heads or stored.shift)
        as_stored = _AS_STORED.get(stored.format)
        if is_plain and target.device.type == "cpu" and target.dtype == as_stored:
            # On one thread: PyTorch's copy waits for all its threads, tensor by tensor, 5 times as
            # long on a busy machine.
            to = target.view(torch.uint8).numpy()
            np.copyto(to, data.reshape(to.shape))
        elif len(data):
            _decode(stored, data, target, is_plain=is_plain)

    def _part(self, stored: StoredTensor, name: str, shard: Shard) -> Tensor:
        is_plain = not (_is_quantised(stored) or stored.heads or stored.shift)
        as_stored = _AS_STORED.get(stored.format) if is_plain else None
        if as_stored is None:
            whole = torch.empty(stored.shape)
            self.copy(name, whole)
            return torch.cat([whole[own] for own in shard.slices], shard.dimension)
        numbers = self._bytes(stored).view(f"V{as_stored.itemsize}").reshape(stored.shape)
        parts = [numbers[own] for own in shard.slices]
        joined = np.concatenate(parts, shard.dimension)  # a copy
        return torch.from_numpy(joined.view(np.uint8)).view(as_stored).view(joined.shape)

    def _floats(self, stored: StoredTensor) -> NDArray[np.float32]:
        """A tensor's elements in its shape."""
        values = torch.empty(stored.shape)
        is_plain = stored.format not in BLOCKWISE and not stored.shift
        _decode(stored, self._bytes(stored), values, is_plain=is_plain)
        return values.numpy()

    def is_kept(
        self,
        parameter: Parameter,
        quantization: str | None = None,
        shards: Mapping[str, Shard] = NO_SHARDS,
    ) -> bool:
        """Whether it is a matrix whose parts kernels all take as they are stored.

        Args:
            quantization: Only this of their formats will do.
            shards: What is wanted of its parts, where that is not all.
        """
        if len(parameter.shape) != 2:
            return False
        formats = {self._kept_format(self._tensors[name]) for name, _ in parameter.parts}
        if "int8" in formats and not parameter.name.endswith(".weight"):
            return False  # rows of a table are looked up, too
        widths = {each.removeprefix("u") for each in formats}  # with zero points or without
        if "" in formats or not (quantization is None or widths == {quantization}):
            return False
        cut = {end for name, _ in parameter.parts for end in _columns(shards.get(name))}
        return all(end % inputs_together(own) == 0 for own in formats for end in cut)

    def are_integers(self, parameter: Parameter) -> bool:
        """Whether its parts have codes and scales apart, all of one format."""
        parts = [self._tensors[name] for name, _ in parameter.parts]
        return all(map(_is_quantised, parts)) and len(set(map(self._kept_format, parts))) == 1

    def _kept_format(self, stored: StoredTensor) -> str:
        if isinstance(stored, QuantisedTensor):
            return held_by(stored, self._bytes, GROUP)
        if isinstance(stored, DerivedTensor):
            return ""
        return KEPT_FORMATS.get(stored.format, "")

    def kept_bytes(self, parameter: Parameter) -> int:
        """What it takes in memory if it ``is_kept``."""
        parts = [self._tensors[name] for name, _ in parameter.parts]
        bits = [math.prod(own.shape) * PACKED_BITS[self._kept_format(own)] for own in parts]
        return int(sum(bits)) // 8

    def kept(self, name: str, library: Library | None, shard: Shard | None = None) -> KeptWeight:
        """A matrix as it is stored, in a format that the kernels take.

        Args:
            library: The compiled kernels, which blocks of a GGUF file need.
            shard: What is wanted of it.
        """
        if shard is not None:
            whole = self.kept(name, library)
            if shard.dimension == 0:
                return whole.reordered(torch.cat([torch.arange(*own) for own in shard.ranges]))
            ((first, end),) = shard.ranges
            return whole.inputs_between(first, end)
        stored = self._tensors[name]
        if isinstance(stored, QuantisedTensor):
            return self._kept_integers(stored)
        assert library is not None, "blocks stay as they are stored where compiled kernels run"
        outputs, inputs = stored.shape
        rows = self._bytes(stored).reshape(outputs, -1)
        weight = StoredBlocks(KEPT_FORMATS[stored.format], rows, inputs, library)
        if not stored.heads:
            return weight
        return weight.reordered(_places(outputs, stored.heads).argsort())

    def _kept_integers(self, stored: QuantisedTensor) -> StoredWeight:
        weight, format_ = scaled_values(stored, self._bytes), self._kept_format(stored)

        def by_group(numbers: NDArray[Any], dtype: type[np.generic]) -> Tensor:
            if stored.scheme.bits == 4:  # those of groups of 32, of which larger ones consist
                numbers = numbers[:, weight.group_of[::GROUP]]
            return torch.from_numpy(np.ascontiguousarray(numbers, dtype))

        factors = by_group(weight.scales, np.float32)
        if format_ != "uint4" or weight.zeros is None:
            return StoredWeight(format_, torch.from_numpy(weight.signed()), factors)
        codes = torch.from_numpy(np.ascontiguousarray(weight.codes))
        return StoredWeight(format_, codes, factors, minimums=by_group(weight.zeros, np.uint8))

    def _unpack(self, stored: QuantisedTensor, target: Tensor) -> None:
        weight, (rows, inputs) = scaled_values(stored, self._bytes), stored.shape
        step = max(_IN_CACHE // inputs, 1)
        for begin in range(0, rows, step):
            target[begin : begin + step] = torch.from_numpy(weight.rows(begin, begin + step))

    def _is_empty_bias(self, name: str) -> bool:
        """Whether it is zero, as GPTQ's tools write for layers that have no bias."""
        module, _, last = name.rpartition(".")
        stored, weight = self._tensors[name], self._tensors.get(f"{module}.weight")
        if last != "bias" or weight is None or not _is_quantised(weight):
            return False
        return not self._bytes(stored).any()

    def _bytes(self, stored: StoredTensor) -> NDArray[np.uint8]:
        if stored.path not in self._maps:
            self._maps[stored.path] = np.memmap(stored.path, np.uint8, "r")
        return self._maps[stored.path][stored.offset : stored.offset + stored.nbytes]


def _columns(shard: Shard | None) -> list[int]:
    """Where a matrix is cut between its columns."""
    if shard is None or shard.dimension == 0:
        return []
    return [end for own in shard.ranges for end in own]


def _sources(stored: StoredTensor) -> tuple[StoredTensor, ...]:
    return stored.sources if isinstance(stored, DerivedTensor) else (stored,)


def _is_quantised(stored: StoredTensor) -> bool:
    return isinstance(stored, QuantisedTensor)


def _rounds_activations(stored: StoredTensor) -> bool:
    return isinstance(stored, QuantisedTensor) and bool(stored.scheme.activations)


def _decode(
    stored: StoredTensor, data: NDArray[np.uint8], target: Tensor, *, is_plain: bool
) -> None:
    """Convert a few rows at a time; by way of float32 where they are more than other numbers."""
    rows = stored.shape[0] if len(stored.shape) > 1 or stored.heads else 1
    source, target = data.reshape(rows, -1), target.view(rows, -1)
    places = _places(rows, stored.heads) if stored.heads else None
    step = max(_CHUNK // target.shape[1], 1)
    for begin in range(0, rows, step):
        part = source[begin : begin + step]
        if is_plain:
            values = torch.from_numpy(part.copy()).view(_AS_STORED[stored.format])
        else:
            values = torch.from_numpy(dequantise(stored.format, part)).view(len(part), -1)
            values -= stored.shift
        values = values.to(target)
        if places is None:
            target[begin : begin + step] = values
        else:
            target.index_copy_(0, places[begin : begin + step].to(target.device), values)


def _places(rows: int, heads: int) -> Tensor:
    """Where each row belongs, of heads whose halves take turns."""
    order = torch.arange(rows).view(heads, 2, -1)  # as they belong: all of a half, then the other
    return order.transpose(1, 2).reshape(-1)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
