"""Rounds rows to numbers of 8 bits (e4m3), each row by a scale of its own."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier

LARGEST = tl.constexpr(448.0)  # of such numbers


@triton.jit
def round_rows(
    x,  # [rows, size]
    codes,  # float8 [rows, size]
    scales,  # float32 [rows]: a number is its code times the row's scale
    row_stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,  # SIZE, rounded up to a power of two
    OVERLAPS: tl.constexpr,
):
    """The largest of a row becomes the largest code; what is not finite becomes no number."""
    wait_for_earlier(OVERLAPS)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    inside = column < SIZE
    wide = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0), 1e-30) / LARGEST
    unit = wide / scale
    bounded = tl.minimum(tl.maximum(unit, -LARGEST), LARGEST)
    unit = tl.where(unit == unit, bounded, unit)
    tl.store(codes + row * SIZE + column, unit.to(codes.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)
