"""Normalizes rows in float32, see ``layers.norm`` for the kinds."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def normalize(
    x,  # [tokens, rows, size]
    weight,  # [weights, size]
    out,  # [tokens, rows, size], contiguous
    token_stride,
    row_stride,
    rows,
    weights,
    eps,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,  # SIZE, rounded up to a power of two
    CENTERED: tl.constexpr,  # its mean is subtracted first
    ROUNDED: tl.constexpr,  # to the type of x before the weight is applied
    OVERLAPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token, within = row // rows, row % rows
    column = tl.arange(0, TILE)
    inside = column < SIZE
    factor = tl.load(weight + row % weights * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(OVERLAPS)
    own = x + token * token_stride + within * row_stride
    wide = tl.load(own + column, mask=inside, other=0.0).to(tl.float32)
    if CENTERED:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / SIZE, 0.0)
    unit = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    if ROUNDED:
        unit = unit.to(x.dtype.element_ty).to(tl.float32)
    tl.store(out + row * SIZE + column, unit * factor, mask=inside)
