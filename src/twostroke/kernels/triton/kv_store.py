"""Writes the keys and values of a step's tokens into their slots of a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def store_keys_and_values(
    keys,  # [tokens, HEADS, KEY_DIM]
    values,  # [tokens, HEADS, VALUE_DIM]
    key_cache,  # [blocks, PAGE, HEADS, KEY_DIM]
    value_cache,  # [blocks, PAGE, HEADS, VALUE_DIM]
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
    IS_BOUNDED: tl.constexpr,  # whether the cache's numbers reach less far than the rows'
    LARGEST: tl.constexpr,  # of the cache's numbers then
    OVERLAPS: tl.constexpr,
):
    wait_for_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        block, offset = slot // PAGE, slot % PAGE
        if tl.program_id(1) == 0:
            _store(
                keys + token * key_row, key_cache + block * key_block + offset * key_token,
                key_head, key_cache_head, HEADS, KEY_DIM, HEAD_TILE, KEY_TILE, IS_BOUNDED, LARGEST,
            )  # fmt: skip
        else:
            _store(
                values + token * value_row,
                value_cache + block * value_block + offset * value_token,
                value_head, value_cache_head, HEADS, VALUE_DIM, HEAD_TILE, VALUE_TILE, IS_BOUNDED,
                LARGEST,
            )  # fmt: skip


@triton.jit
def _store(
    source,
    target,
    source_head,
    target_head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    IS_BOUNDED: tl.constexpr,
    LARGEST: tl.constexpr,
):
    head, dim = tl.arange(0, HEAD_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
    inside = (head < HEADS) & (dim < DIM)
    row = tl.load(source + head * source_head + dim, mask=inside, other=0.0)
    if IS_BOUNDED:  # what is too large becomes the largest number; infinity stays an error
        wide = row.to(tl.float32)
        bounded = tl.minimum(tl.maximum(wide, -LARGEST), LARGEST)
        row = tl.where(tl.abs(wide) < float("inf"), bounded, float("nan"))
    place = target + head * target_head + dim
    tl.store(place, row.to(target.dtype.element_ty), mask=inside)
