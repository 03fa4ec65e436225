"""Writes the keys and values of a step's tokens into their slots of a paged cache."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_rows(
    rows,  # [tokens, kv_heads, dim]
    cache,  # [blocks, PAGE, kv_heads, dim]
    slots,  # int64 [tokens]; below zero: the row is not kept
    row_token,  # strides, in elements
    row_head,
    cache_block,
    cache_token,
    cache_head,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HEAD_TILE: tl.constexpr,  # both, rounded up to powers of two
    DIM_TILE: tl.constexpr,
    PAGE: tl.constexpr,
    LARGEST: tl.constexpr,  # of the cache's numbers, where they do not reach as far as the rows'
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        head, dim = tl.arange(0, HEAD_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
        inside = (head < HEADS) & (dim < DIM)
        row = tl.load(rows + token * row_token + head * row_head + dim, mask=inside, other=0.0)
        if LARGEST:
            wide = row.to(tl.float32)
            is_finite = tl.abs(wide) < float("inf")  # of NaN neither
            bounded = tl.minimum(tl.maximum(wide, -LARGEST), LARGEST)
            row = tl.where(is_finite, bounded, float("nan"))
        at = slot // PAGE * cache_block + slot % PAGE * cache_token
        tl.store(cache + at + head * cache_head + dim, row.to(cache.dtype.element_ty), mask=inside)
