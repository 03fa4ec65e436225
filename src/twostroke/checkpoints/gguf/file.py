"""Reads the head of a GGUF file: its metadata, and where its tensors lie.

Every count and length is held against the bytes that the file has left before anything of that
size is made, so that reading takes no more memory than a small multiple of the head.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np

from twostroke.checkpoints.checkpoint import StoredTensor
from twostroke.checkpoints.gguf.block_formats import BLOCK_FORMATS
from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.config_fields import short

Value = bool | int | float | str | list[str] | list[bool] | list[int] | list[float]
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_NAME = 65_535  # bytes of a key, which is what the format allows
MAX_ALIGNMENT = 2**20
_FLOAT32, _BOOL, _STRING, _ARRAY = 6, 7, 8, 9
# Of numbers by the type's number: as struct and as NumPy call them.
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    _FLOAT32: "f",
    _BOOL: "B",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file; ``tensors`` by their names in it, in shapes with the contiguous dimension last."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, StoredTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read one file. Raises ModelLoadError with what is wrong with it."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            return _Head(path, data).read()
    except (OSError, ValueError) as error:  # of mmap, which refuses an empty file
        raise _broken(path, str(error)) from error


class _Head:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._size, self._at = path, data, len(data), 0

    def read(self) -> GgufFile:
        if self._data[:4] != b"GGUF":
            self._fail("it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version not in VERSIONS:
            swapped = struct.unpack(">I", struct.pack("<I", version))[0]
            endian = ", of big-endian machines" if swapped in VERSIONS else ""
            self._fail(f"its version is {version}{endian}; 2 and 3 are supported, little-endian")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        metadata: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._text("a key", MAX_NAME)
            if key in metadata:
                self._fail(f"it states {short(key)} twice")
            metadata[key] = self._value(key)
        infos = [self._info() for _ in range(self._bounded(num_tensors, 24, "tensors"))]
        return GgufFile(self._path, metadata, self._place(infos, self._alignment(metadata)))

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self._at + size > self._size:
            self._fail(f"it ends after {self._size} bytes, within its head")
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += size
        return value  # type: ignore[no-any-return]  # a float where the form says so

    def _bounded(self, count: int, size: int, what: str) -> int:
        """``count``, if as many of ``size`` bytes at least fit into the rest of the file."""
        if count > (self._size - self._at) // size:
            self._fail(f"{what}: {count} of them exceed the file's {self._size} bytes")
        return count

    def _text(self, what: str, longest: int | None = None) -> str:
        length = self._bounded(self._number("Q"), 1, f"{what}, a text: its bytes")
        if longest is not None and length > longest:
            self._fail(f"{what} has {length} bytes")
        begin = self._at
        self._at += length
        return self._data[begin : self._at].decode("utf-8", errors="replace")

    def _value(self, key: str) -> Value:
        kind = self._number("I")
        if kind == _STRING:
            return self._text(short(key))
        if kind == _BOOL:
            return bool(self._number("B"))
        if kind == _FLOAT32:  # 1e-05, not 9.999999747378752e-06
            return float(str(np.float32(self._number("f"))))
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            self._fail(f"{short(key)} has the type {kind}, which is unknown")
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            count = self._bounded(count, 8, short(key))
            return [self._text(short(key)) for _ in range(count)]
        if kind not in _NUMBERS:
            self._fail(f"{short(key)} is a list of type {kind}, which is unknown")
        dtype = np.dtype("?" if kind == _BOOL else _NUMBERS[kind]).newbyteorder("<")
        begin = self._at
        self._at += self._bounded(count, dtype.itemsize, short(key)) * dtype.itemsize
        values: list[int] = np.frombuffer(self._data[begin : self._at], dtype).tolist()
        return values

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        """A tensor's name, dimensions, type and offset."""
        name = self._text("a tensor's name", MAX_NAME)
        count = self._number("I")
        if not 0 < count <= MAX_DIMENSIONS:
            self._fail(f"{short(name)} has {count} dimensions")
        dimensions = tuple(self._number("Q") for _ in range(count))
        return name, dimensions, self._number("I"), self._number("Q")

    def _alignment(self, metadata: dict[str, Value]) -> int:
        value = metadata.get("general.alignment", 32)
        if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
            self._fail(f"general.alignment must be a power of two, got {short(value)}")
        return value

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, StoredTensor]:
        """Where the tensors lie, if all of them are in the file and none in another."""
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, dimensions, kind, offset in infos:
            if name in tensors:
                self._fail(f"it has {short(name)} twice")
            if kind not in BLOCK_FORMATS:
                self._fail(f"{short(name)} has the type {kind}, which is unknown")
            form, count = BLOCK_FORMATS[kind], math.prod(dimensions)
            if not count or dimensions[0] % form.elements:
                self._fail(
                    f"{short(name)} has the dimensions {dimensions}, and {form.name} comes in"
                    f" blocks of {form.elements}"
                )
            nbytes = count // form.elements * form.nbytes
            if offset % alignment or base + offset + nbytes > self._size:
                self._fail(
                    f"{short(name)}, {nbytes} bytes at {base + offset}, is not within the file's"
                    f" {self._size} bytes or not aligned to {alignment}"
                )
            shape = dimensions[::-1]
            tensors[name] = StoredTensor(form.name, shape, self._path, base + offset, nbytes)
        for before, after in pairwise(sorted(tensors, key=lambda name: tensors[name].offset)):
            if tensors[before].offset + tensors[before].nbytes > tensors[after].offset:
                self._fail(f"{short(before)} and {short(after)} overlap")
        return tensors

    def _fail(self, message: str) -> NoReturn:
        raise _broken(self._path, message)


def _broken(path: Path, message: str) -> ModelLoadError:
    hint = "the file is broken, incomplete or no GGUF file; download it again"
    return ModelLoadError(f"cannot read {path}: {message}", hint=hint)
