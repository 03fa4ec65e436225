"""Protects: blocks become the numbers that ggml's own package makes of them, to the bit."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest

from twostroke.checkpoints.gguf.block_formats import SIZES
from twostroke.checkpoints.gguf.dequantise import BLOCKWISE, dequantise

BLOCKS = 300
# SHA-256 of the float32 values (NaN as 0) of the blocks below, by ``gguf.quants.dequantize`` of
# gguf 0.19.0.
REFERENCE = {
    "Q4_0": "f4a069d28ad71679c3177b904fc815ea",
    "Q4_1": "dea4e23e39473240f58671b1dc3dccbb",
    "Q5_0": "75ff03c37ca6e889c1ca5b97085282d1",
    "Q5_1": "8d646a87528e7cab08b152b86a35451f",
    "Q8_0": "b73c8b8c97ac4d78a542de381b0692e2",
    "Q2_K": "0fb11466315ea8788709f34fb5be391e",
    "Q3_K": "884f859fc8c24e3828e922346af5582c",
    "Q4_K": "b81787df0d47ea8d53daaefea6d2bbcb",
    "Q5_K": "cda3b497f761fe10261c7971458e7bd0",
    "Q6_K": "249e82e9a5350add7797a16b5f787bc3",
    "IQ4_NL": "5120e2a6598cc176fc9b9c18df612919",
    "IQ4_XS": "4c6d5d7732fe8556664001cf247b70b1",
    "MXFP4": "f82514b534163046528e96bf0816ee09",
}


def test_every_format_has_a_reference() -> None:
    assert set(REFERENCE) == set(BLOCKWISE)


@pytest.mark.parametrize("name", REFERENCE)
def test_random_blocks(name: str) -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    data = generator.integers(0, 256, (BLOCKS, SIZES[name][1]), dtype=np.uint8)
    values = dequantise(name, data)
    assert values.dtype == np.float32 and len(values) == BLOCKS * SIZES[name][0]
    values = np.where(np.isnan(values), np.float32(0), values)
    assert hashlib.sha256(values.tobytes()).hexdigest()[:32] == REFERENCE[name]


def test_a_block_by_hand() -> None:
    """Q4_0: a scale of 0.5, then 16 bytes whose low halves are the first 16 elements."""
    stored = range(0x0F, 0xFF, 0x0F)
    block = np.frombuffer(struct.pack("<e16B", 0.5, *stored), np.uint8)
    values = dequantise("Q4_0", block)
    codes = [*(byte & 15 for byte in stored), *(byte >> 4 for byte in stored)]
    assert values.tolist() == [0.5 * (code - 8) for code in codes]


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_numbers(name: str) -> None:
    wide = np.array([1.0, -2.5, 0.0, 1e-3], np.float32)
    stored = {
        "F32": wide.tobytes(),
        "F16": wide.astype(np.float16).tobytes(),
        "BF16": (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }
    values = dequantise(name, np.frombuffer(stored[name], np.uint8))
    assert np.allclose(values, wide, rtol=2**-7) and values[1] == -2.5
