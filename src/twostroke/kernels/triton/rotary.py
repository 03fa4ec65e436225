"""Rotary position embedding in place (Su et al. 2021)."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def rotate(
    x,  # [tokens, HEADS, 2 * HALF]
    positions,  # int64 [tokens]
    cos,  # float32 [max_length, HALF], like ``sin``
    sin,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_TILE: tl.constexpr,  # both, rounded up to powers of two
    HALF_TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Element i of a head is paired with i + HALF."""
    wait_for_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, HEAD_TILE)[:, None], tl.arange(0, HALF_TILE)
    position = tl.load(positions + token)
    c = tl.load(cos + position * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    s = tl.load(sin + position * HALF + pair, mask=pair < HALF, other=0.0)[None, :]
    pair = pair[None, :]
    inside = (head < HEADS) & (pair < HALF)
    first = x + token * token_stride + head * head_stride + pair
    low = tl.load(first, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(first + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(first, low * c - high * s, mask=inside)
    tl.store(first + HALF, high * c + low * s, mask=inside)
