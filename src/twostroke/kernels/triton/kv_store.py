"""Writes the keys and values of a step's tokens into their slots of a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier

SMALLEST_SCALE = tl.constexpr(2.0**-100)
# Added to a number of at most 22 bits and taken away again, it leaves the nearest whole number,
# the even one of two: float32 has no fractions there.
WHOLE = tl.constexpr(12582912.0)  # 3 * 2**22


@triton.jit
def store_keys_and_values(
    keys,  # [tokens, HEADS, KEY_DIM]
    values,  # [tokens, HEADS, VALUE_DIM]
    key_cache,  # [blocks, PAGE, HEADS, KEY_DIM]
    value_cache,  # [blocks, PAGE, HEADS, VALUE_DIM]
    key_scales,  # bits of bfloat16s, int16 [blocks, HEADS, PAGE], like ``value_scales``; if SCALED
    value_scales,
    slots,  # int64 [tokens]; below zero: the token is not kept
    key_row,  # strides, in elements
    key_head,
    value_row,
    value_head,
    key_block,
    key_token,
    key_cache_head,
    value_block,
    value_token,
    value_cache_head,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,  # HEADS and the dimensions, rounded up to powers of two
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    PAGE: tl.constexpr,
    LARGEST: tl.constexpr,  # of the cache's numbers, if they reach less far than the rows'; else 0
    SCALED: tl.constexpr,  # the cache's rows are int8, each with a scale
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        block, offset = slot // PAGE, slot % PAGE
        if tl.program_id(1) == 0:
            _store(
                keys + token * key_row, key_cache + offset * key_token, key_scales, block, offset,
                key_head, key_block, key_cache_head, HEADS, KEY_DIM, HEAD_TILE, KEY_TILE, PAGE,
                LARGEST, SCALED,
            )  # fmt: skip
        else:
            _store(
                values + token * value_row, value_cache + offset * value_token, value_scales,
                block, offset, value_head, value_block, value_cache_head, HEADS, VALUE_DIM,
                HEAD_TILE, VALUE_TILE, PAGE, LARGEST, SCALED,
            )  # fmt: skip


@triton.jit
def _store(
    source, target, scales, block, offset, source_head, target_block, target_head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    PAGE: tl.constexpr,
    LARGEST: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    head, dim = tl.arange(0, HEAD_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
    inside = (head < HEADS) & (dim < DIM)
    row = tl.load(source + head * source_head + dim, mask=inside, other=0.0)
    if SCALED:
        row, bits = _encoded(row.to(tl.float32))
        own = tl.arange(0, HEAD_TILE)
        scale_at = scales + block * (target_block // 2) + own * PAGE + offset
        tl.store(scale_at, bits, mask=own < HEADS)
    if LARGEST > 0:  # what is too large becomes the largest number; infinity stays an error
        wide = row.to(tl.float32)
        bounded = tl.minimum(tl.maximum(wide, -LARGEST), LARGEST)
        row = tl.where(tl.abs(wide) < float("inf"), bounded, float("nan"))
    place = target + block * target_block + head * target_head + dim
    tl.store(place, row.to(target.dtype.element_ty), mask=inside)


@triton.jit
def _encoded(rows):
    """Rows of float32 as whole numbers of 8 bits, and their scales as the bits of bfloat16s.

    They are those of ``layers.scaled_rows.encode_rows``, if the launch rounds each product before
    it adds to it (``enable_fp_fusion=False``). As integers, NaN is the largest of a row.
    """
    largest = tl.max(rows.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    size = tl.div_rn(largest.to(tl.float32, bitcast=True), 127.0)
    up = (size.to(tl.int32, bitcast=True) + 0xFFFF) & -0x10000
    scale = tl.maximum(up.to(tl.float32, bitcast=True), SMALLEST_SCALE)
    scale = tl.where(size < float("inf"), scale, size)
    steps = (rows * tl.div_rn(1.0, scale)[:, None] + WHOLE) - WHOLE
    return steps, (scale.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
