"""Causal attention over a paged cache of latents, which all query heads see (DeepSeek-V2).

As in ``paged_attention``, with two differences. A row of the cache is a latent and after it a
rotated key, two products rather than one of a width that no power of two is near; and the latent is
the value as well, so that it is read once. Query heads are taken by tiles of their own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier
from twostroke.kernels.triton.paged_attention import (
    LOG2_E,
    STEP_SIZES,
    STEP_TABLES,
    load_rows,
    place_of_tile,
    span,
)


@triton.jit(do_not_specialize=STEP_SIZES, do_not_specialize_on_alignment=STEP_TABLES)
def latent_attention(
    query,  # [tokens, heads, LATENT + ROTATED], absorbed
    latents,  # [blocks, PAGE, 1, LATENT + ROTATED]
    scales,  # int32 [blocks, 1, PAGE / 2], see ``load_rows``; if SCALED
    out,  # [tokens, heads, LATENT]; with splits float32 [rows, heads, SPLITS, LATENT]
    highest, sums,  # float32 [rows, heads, SPLITS], used with splits alone
    tile_requests, tile_rows, tile_starts,  # see ``paged_attention``
    query_start, context_lens, block_table,
    table_stride, heads, query_token, query_head, latent_block, latent_token,
    scale, window,
    LATENT: tl.constexpr, ROTATED: tl.constexpr,
    LATENT_TILE: tl.constexpr, ROTATED_TILE: tl.constexpr,  # rounded up to powers of two
    HEADS: tl.constexpr,  # of a tile
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # queries times heads of a tile
    KEYS: tl.constexpr,  # latents that are looked at together
    SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, HAS_WINDOW: tl.constexpr, SCALED: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(OVERLAPS)
    split = tl.program_id(2)
    request, first, part = place_of_tile(tile_requests, tile_starts, tile_rows)
    begin = tl.load(query_start + request)
    num_queries = tl.load(query_start + request + 1) - begin
    context = tl.load(context_lens + request)
    earlier = context - num_queries  # tokens before this step's
    rows = tl.arange(0, ROWS)
    token, head = first + rows // HEADS, tl.program_id(1) * HEADS + rows % HEADS
    is_row = (token < num_queries) & (head < heads)
    row_at = (begin + token).to(tl.int64)
    out_row = (part + rows // HEADS if SPLITS > 1 else row_at).to(tl.int64) * heads + head
    start, all_seen, end = span(
        context, earlier + first, split, window, ROWS // HEADS, KEYS, SPLITS, MIN_SPLIT, HAS_WINDOW
    )
    if SPLITS > 1 and start >= end:  # most splits of a short request: nothing is read
        tl.store(highest + out_row * SPLITS + split, float("-inf"), mask=is_row)
        tl.store(sums + out_row * SPLITS + split, 0.0, mask=is_row)
        return
    dims, turned = tl.arange(0, LATENT_TILE)[None, :], tl.arange(0, ROTATED_TILE)[None, :]
    query_at = query + row_at[:, None] * query_token + head[:, None] * query_head
    q = tl.load(query_at + dims, mask=is_row[:, None] & (dims < LATENT), other=0.0).to(DOT)
    q_turned = tl.load(
        query_at + LATENT + turned, mask=is_row[:, None] & (turned < ROTATED), other=0.0
    ).to(DOT)
    table = block_table + request.to(tl.int64) * table_stride
    top, total, mixed = _attend(
        start, all_seen, end, earlier + token, q, q_turned, table, latents, scales,
        latent_block, latent_token, dims, turned, scale, window, LATENT, ROTATED, PAGE, KEYS,
        HAS_WINDOW, SCALED, DOT,
    )  # fmt: skip
    mask = is_row[:, None] & (dims < LATENT)
    if SPLITS > 1:
        at_split = out_row * SPLITS + split
        tl.store(highest + at_split, top, mask=is_row)
        tl.store(sums + at_split, total, mask=is_row)
        tl.store(out + at_split[:, None] * LATENT + dims, mixed, mask=mask)
    else:
        total = tl.where(total > 0, total, 1.0)
        tl.store(out + out_row[:, None] * LATENT + dims, mixed / total[:, None], mask=mask)


@triton.jit
def _attend(
    start, all_seen, end, position, q, q_turned, table, latents, scales, latent_block,
    latent_token, dims, turned, scale, window,
    LATENT: tl.constexpr, ROTATED: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, SCALED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Walk over the latents from ``start`` to ``end``; up to ``all_seen`` nothing is masked."""
    top = tl.full((q.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((q.shape[0],), tl.float32)
    mixed = tl.zeros((q.shape[0], q.shape[1]), tl.float32)
    for at in range(start, all_seen, KEYS):
        top, total, mixed = _attend_tile(
            at, start, end, position, top, total, mixed, q, q_turned, table, latents, scales,
            latent_block, latent_token, dims, turned, scale, window, LATENT, ROTATED, PAGE, KEYS,
            HAS_WINDOW, False, SCALED, DOT,
        )  # fmt: skip
    for at in range(all_seen, end, KEYS):
        top, total, mixed = _attend_tile(
            at, start, end, position, top, total, mixed, q, q_turned, table, latents, scales,
            latent_block, latent_token, dims, turned, scale, window, LATENT, ROTATED, PAGE, KEYS,
            HAS_WINDOW, True, SCALED, DOT,
        )  # fmt: skip
    return top, total, mixed


@triton.jit
def _attend_tile(
    at, start, end, position, top, total, mixed, q, q_turned, table, latents, scales,
    latent_block, latent_token, dims, turned, scale, window,
    LATENT: tl.constexpr, ROTATED: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr, MASKED: tl.constexpr, SCALED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: the latents ``at`` to ``at + KEYS``."""
    seen = at + tl.arange(0, KEYS)
    exists = seen < end
    if HAS_WINDOW:
        exists = exists & (seen >= start)
    block = tl.load(table + seen // PAGE, mask=exists, other=0).to(tl.int64)
    offset = seen % PAGE
    latent = load_rows(
        latents, scales, block, offset, exists, 0, latent_block, latent_token, 0, dims,
        LATENT, PAGE, MASKED, SCALED, DOT,
    )  # fmt: skip
    key = load_rows(
        latents + LATENT, scales, block, offset, exists, 0, latent_block, latent_token, 0, turned,
        ROTATED, PAGE, MASKED, SCALED, DOT,
    )  # fmt: skip
    scores = tl.dot(q, tl.trans(latent), input_precision="ieee")
    scores = tl.dot(q_turned, tl.trans(key), scores, input_precision="ieee")
    scores = scores * scale * LOG2_E
    if MASKED:
        visible = exists[None, :] & (seen[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (seen[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing so far: -inf minus -inf is no number.
    level = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - level[:, None])
    shrink = tl.exp2(top - level)
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(DOT), latent, mixed * shrink[:, None], input_precision="ieee")
    return higher, total, mixed
