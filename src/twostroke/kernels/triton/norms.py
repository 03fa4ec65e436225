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
    normed = _normed(wide, factor, inside, eps, x.dtype.element_ty, SIZE, CENTERED, ROUNDED)
    tl.store(out + row * SIZE + column, normed, mask=inside)


@triton.jit
def add_and_normalize(
    residual,  # [tokens, size], contiguous as all that follow
    update,  # [tokens, size]
    weight,  # [size]
    total,  # [tokens, size]
    out,  # [tokens, size]
    eps,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,  # these as in ``normalize``
    CENTERED: tl.constexpr,
    ROUNDED: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """``normalize`` of ``residual + update``, which is rounded as if it were added before."""
    column = tl.arange(0, TILE)
    inside = column < SIZE
    place = tl.program_id(0).to(tl.int64) * SIZE + column
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait_for_earlier(OVERLAPS)
    wide = tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    wide += tl.load(update + place, mask=inside, other=0.0).to(tl.float32)
    added = wide.to(total.dtype.element_ty)
    tl.store(total + place, added, mask=inside)
    wide = added.to(tl.float32)
    normed = _normed(wide, factor, inside, eps, out.dtype.element_ty, SIZE, CENTERED, ROUNDED)
    tl.store(out + place, normed, mask=inside)


@triton.jit
def _normed(
    wide,  # [TILE], float32, zero where not ``inside``
    factor,
    inside,
    eps,
    TYPE: tl.constexpr,
    SIZE: tl.constexpr,
    CENTERED: tl.constexpr,
    ROUNDED: tl.constexpr,
):
    if CENTERED:
        wide = tl.where(inside, wide - tl.sum(wide, 0) / SIZE, 0.0)
    unit = wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    if ROUNDED:
        unit = unit.to(TYPE).to(tl.float32)
    return unit * factor
