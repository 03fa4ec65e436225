"""Blocks of GGUF files to float32, in NumPy: the reference, and what loading computes with.

The layouts are those of ggml (``ggml-common.h``, ``ggml-quants.c``). Blocks are rows of bytes
``[blocks, bytes]``, results ``[blocks, elements]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twostroke.checkpoints.gguf.block_formats import SIZES

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# What the 16 codes of IQ4 stand for, unevenly spaced; and those of MXFP4, in halves.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def dequantise(name: str, data: Bytes) -> Floats:
    """All elements of ``data``, whole blocks of the format called ``name``, in order."""
    _, nbytes = SIZES[name]
    with np.errstate(all="ignore"):  # an infinite scale makes what it makes
        return _DEQUANTISERS[name](data.reshape(-1, nbytes)).reshape(-1)


class BlockParts(NamedTuple):
    """Rows of blocks taken apart: codes ``[rows, elements]``, the others ``[rows, numbers]``.

    Attributes:
        factors, minimum_factors: float32, of each block.
        scales, minimums: Integers, of each group of elements.
    """

    codes: Bytes | NDArray[np.int8]
    factors: Floats | None = None
    scales: Bytes | NDArray[np.int8] | None = None
    minimum_factors: Floats | None = None
    minimums: Bytes | None = None


def take_apart(name: str, rows: Bytes) -> BlockParts:
    """Rows of blocks of a format of ``SPLIT``, ``[rows, bytes]``, with every number as stored."""
    blocks = rows.reshape(-1, SIZES[name][1])
    parts, count = SPLIT[name](blocks), len(rows)
    factors, scales, minimum_factors, minimums = parts[1:]
    return BlockParts(
        parts.codes.reshape(count, -1),
        None if factors is None else factors.reshape(count, -1),
        None if scales is None else scales.reshape(count, -1),
        None if minimum_factors is None else minimum_factors.reshape(count, -1),
        None if minimums is None else minimums.reshape(count, -1),
    )


def _split_q4_0(blocks: Bytes) -> BlockParts:
    return BlockParts(_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8), _float16(blocks, 0))


def _split_q8_0(blocks: Bytes) -> BlockParts:
    return BlockParts(np.ascontiguousarray(blocks[:, 2:]).view(np.int8), _float16(blocks, 0))


def _with_minima(codes: Bytes, blocks: Bytes) -> BlockParts:
    scales, mins = _six_bits(blocks)
    return BlockParts(codes, _float16(blocks, 0), scales, _float16(blocks, 2), mins)


def _split_q4_k(blocks: Bytes) -> BlockParts:
    return _with_minima(_q4_k_codes(blocks), blocks)


def _split_q5_k(blocks: Bytes) -> BlockParts:
    return _with_minima(_q5_k_codes(blocks), blocks)


def _split_q6_k(blocks: Bytes) -> BlockParts:
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return BlockParts(_q6_k_codes(blocks), _float16(blocks, 208), scales)


def _split_mxfp4(blocks: Bytes) -> BlockParts:
    return BlockParts(_nibbles(blocks[:, 1:]), scales=blocks[:, :1])


SPLIT: Mapping[str, Callable[[Bytes], BlockParts]] = {
    "Q4_0": _split_q4_0,
    "Q8_0": _split_q8_0,
    "Q4_K": _split_q4_k,
    "Q5_K": _split_q5_k,
    "Q6_K": _split_q6_k,
    "MXFP4": _split_mxfp4,
}


def _float16(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block, ``[blocks, 1]``."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(codes: Bytes) -> Bytes:
    """``[..., n]`` bytes as ``[..., 2n]``: all low halves, then all high ones."""
    return np.concatenate((codes & 15, codes >> 4), axis=-1)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _f64(blocks: Bytes) -> Floats:
    return blocks.view("<f8").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _float16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _float16(blocks, 0) * _nibbles(blocks[:, 4:]) + _float16(blocks, 2)


def _fifth_bits(high: Bytes) -> Bytes:
    """``[blocks, 4]`` bytes as the 32 bits in them, each worth 16."""
    return np.unpackbits(high, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _float16(blocks, 0) * (codes.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _float16(blocks, 0) * codes + _float16(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _float16(blocks, 0) * blocks[:, 2:].view(np.int8)


def _quarters(codes: Bytes, width: int) -> Bytes:
    """Two bits of ``[blocks, n]`` bytes at a time, by spans of ``width`` bytes.

    Each span is four runs of ``width`` elements: ``[blocks, n // width, 4, width]``.
    """
    spans = codes.reshape(len(codes), -1, 1, width)
    return (spans >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & np.uint8(3)


def _scaled(
    codes: Bytes | NDArray[np.int8] | Floats, scales: Floats, mins: Floats | None = None
) -> Floats:
    """Codes by their runs' scales, ``[blocks, runs]``, less the runs' minima."""
    runs = codes.reshape(len(codes), scales.shape[1], -1)
    values: Floats = scales[:, :, None] * runs
    if mins is not None:
        values -= mins[:, :, None]
    return values.reshape(len(codes), -1)


def _q2_k(blocks: Bytes) -> Floats:
    packed, codes = blocks[:, :16], _quarters(blocks[:, 16:80], 32)
    scales, mins = _float16(blocks, 80) * (packed & 15), _float16(blocks, 82) * (packed >> 4)
    return _scaled(codes, scales, mins)


def _q3_k(blocks: Bytes) -> Floats:
    high, packed = blocks[:, :32], blocks[:, 96:108]
    low = _quarters(blocks[:, 32:96], 32)  # [blocks, 2, 4, 32]
    bits = np.unpackbits(high[:, None], axis=1, bitorder="little").reshape(low.shape)
    codes = low.astype(np.int8) - 4 * (1 - bits.astype(np.int8))
    upper = _quarters(packed[:, 8:], 4).reshape(-1, 16)
    scales = (_nibbles(packed[:, :8]) | upper << 4).astype(np.float32) - 32
    return _scaled(codes, _float16(blocks, 108) * scales)


def _six_bits(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack Q4_K's and Q5_K's 8 scales and 8 minima of six bits ``[blocks, 8]``."""
    low, high, mixed = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((low & 63, mixed & 15 | low >> 6 << 4), axis=1)
    return scales, np.concatenate((high & 63, mixed >> 4 | high >> 6 << 4), axis=1)


def _scales_and_mins(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, mins = _six_bits(blocks)
    return _float16(blocks, 0) * scales, _float16(blocks, 2) * mins


def _q4_k_codes(blocks: Bytes) -> Bytes:
    return _nibbles(blocks[:, 16:].reshape(-1, 4, 32))


def _q4_k(blocks: Bytes) -> Floats:
    return _scaled(_q4_k_codes(blocks), *_scales_and_mins(blocks))


def _q5_k_codes(blocks: Bytes) -> Bytes:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = np.unpackbits(blocks[:, None, 16:48], axis=1, bitorder="little")  # [blocks, 8, 32]
    return low | high << np.uint8(4)


def _q5_k(blocks: Bytes) -> Floats:
    return _scaled(_q5_k_codes(blocks), *_scales_and_mins(blocks))


def _q6_k_codes(blocks: Bytes) -> Bytes:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    return low | _quarters(blocks[:, 128:192], 32) << np.uint8(4)


def _q6_k(blocks: Bytes) -> Floats:
    scales = _float16(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return _scaled(_q6_k_codes(blocks).astype(np.int8) - 32, scales)


def _iq4_nl(blocks: Bytes) -> Floats:
    return _float16(blocks, 0) * IQ4_VALUES[_nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    low = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    high = _quarters(blocks[:, 2:4], 1).reshape(-1, 8)
    scales = (low | high << 4).astype(np.float32) - 32
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16))
    return _scaled(IQ4_VALUES[codes], _float16(blocks, 0) * scales)


def _mxfp4(blocks: Bytes) -> Floats:
    exponents = blocks[:, :1].astype(np.int32) - 128  # values are in halves
    return np.ldexp(MXFP4_VALUES[_nibbles(blocks[:, 1:])], exponents)


_DEQUANTISERS: Mapping[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "F64": _f64,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
# What blocks of several elements can be read from.
BLOCKWISE = tuple(name for name in _DEQUANTISERS if SIZES[name][0] > 1)
