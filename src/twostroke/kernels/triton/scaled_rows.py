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
    """The largest of a row becomes the largest code. A row with what is not finite has no scale."""
    wait_for_earlier(OVERLAPS)
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    inside = column < SIZE
    wide = tl.load(x + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.maximum(tl.max(tl.abs(wide), 0), 1e-30), 448.0)
    unit = tl.div_rn(wide, scale + tl.zeros_like(wide))
    unit = tl.minimum(tl.maximum(unit, -LARGEST), LARGEST)
    tl.store(codes + row * SIZE + column, _rounded(unit).to(codes.dtype.element_ty), mask=inside)
    is_finite = tl.sum((tl.abs(wide) < float("inf")).to(tl.int32), 0) == TILE
    tl.store(scales + row, tl.where(is_finite, scale, float("nan")))


@triton.jit
def _rounded(x):
    """The nearest number with three bits after the first, the even one of two, in float32.

    Converting it to 8 bits changes nothing then, so that all do that alike: Triton's interpreter
    loses a carry.
    """
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
    # Below 2**-6 they are 2**-9 apart: added to 3 * 2**22, float32 keeps whole numbers of these.
    small = ((x * 512.0 + 12582912.0) - 12582912.0) * 0.001953125
    return tl.where(tl.abs(x) < 0.015625, small, bits.to(tl.float32, bitcast=True))
