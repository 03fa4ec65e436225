"""Tensors of safetensors files as NumPy arrays; formats that NumPy lacks as what they stand for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.checkpoint import StoredTensor

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}


def _e4m3() -> Floats:
    """What the 256 codes of FP8 stand for: sign, 4 bits of exponent, 3 of fraction (OCP 2023)."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    sizes = np.where(
        exponents == 0, fractions * 2.0**-9, (1 + fractions / 8) * 2.0 ** (exponents - 7.0)
    )
    sizes[codes & 127 == 127] = np.nan  # it has no infinity
    return np.where(codes > 127, -sizes, sizes).astype(np.float32)


E4M3 = _e4m3()
# What the 16 codes of E2M1 stand for.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def codes_of(stored: StoredTensor, data: Bytes) -> NDArray[np.signedinteger | np.uint8]:
    """Integers in their width, or the bytes of an 8-bit format, in the tensor's shape."""
    return data.view(_INTEGERS.get(stored.format, "u1")).reshape(stored.shape)


def floats_of(stored: StoredTensor, data: Bytes) -> Floats:
    """Real numbers as float32, in the tensor's shape; of one that ``is_real``."""
    if stored.format == "BF16":
        values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    elif stored.format == "F8_E4M3":
        values = E4M3[data]
    elif stored.format == "F8_E8M0":
        values = np.where(data == 255, np.nan, np.ldexp(1.0, data.astype(np.int32) - 127))
    else:
        values = data.view({"F16": "<f2", "F32": "<f4"}[stored.format])
    return values.astype(np.float32, copy=False).reshape(stored.shape)


def is_real(stored: StoredTensor) -> bool:
    """Whether ``floats_of`` reads it."""
    return stored.format in ("F16", "BF16", "F32", "F8_E4M3", "F8_E8M0")
