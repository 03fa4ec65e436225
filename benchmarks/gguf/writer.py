"""Writes GGUF files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.gguf.block_formats import BLOCK_FORMATS

ALIGNMENT = 32
NUMBERS = {form.name: number for number, form in BLOCK_FORMATS.items()}
Value = bool | int | float | str | list[str] | list[int] | list[float] | list[bool]


class WrittenTensor(NamedTuple):
    """A tensor's format, shape with the contiguous dimension last, and bytes."""

    format: str
    shape: tuple[int, ...]
    data: bytes


def gguf_bytes(
    metadata: Mapping[str, Value], tensors: Mapping[str, WrittenTensor], version: int = 3
) -> bytes:
    """A whole file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_text(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, tensor in tensors.items():
        head += _text(name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        head += struct.pack("<IQ", NUMBERS[tensor.format], len(data))
        data += _padded(tensor.data)
    return _padded(head) + data


def write_gguf(
    path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, WrittenTensor]
) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def encode(values: NDArray[np.float32], name: str) -> WrittenTensor:
    """Values as F32, F16, BF16 or Q8_0, rounded to nearest."""
    rows = np.ascontiguousarray(values, np.float32)
    if name == "F32":
        data = rows.tobytes()
    elif name == "F16":
        data = rows.astype("<f2").tobytes()
    elif name == "BF16":
        bits = rows.view(np.uint32).astype(np.uint64)
        data = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    elif name == "Q8_0":
        data = _q8_0(rows.reshape(-1, 32))
    else:
        raise ValueError(f"cannot write {name}")
    return WrittenTensor(name, values.shape, data)


def _q8_0(blocks: NDArray[np.float32]) -> bytes:
    """Blocks of 32 elements: a float16 scale, then bytes."""
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    divisors = np.where(scales > 0, scales.astype(np.float32), 1)
    codes = np.clip(np.rint(blocks / divisors), -127, 127).astype(np.int8)
    return np.concatenate((scales.view(np.uint8), codes.view(np.uint8)), axis=1).tobytes()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, list):
        kind = 8 if not value else _kind(value[0])
        kind = 5 if kind == 4 else kind  # lists of whole numbers are signed
        items = b"".join(_item(item) if kind != 5 else struct.pack("<i", item) for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + items
    return struct.pack("<I", _kind(value)) + _item(value)


def _kind(value: bool | int | float | str) -> int:
    """The number of its type: bool, u32 or i32, f32, text."""
    if isinstance(value, bool):
        return 7
    if isinstance(value, int):
        return 5 if value < 0 else 4
    return 6 if isinstance(value, float) else 8


def _item(value: bool | int | float | str) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return struct.pack({7: "<?", 4: "<I", 5: "<i", 6: "<f"}[_kind(value)], value)
