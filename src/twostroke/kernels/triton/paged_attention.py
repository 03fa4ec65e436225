"""Causal attention over a paged cache: prompts, drafts and single tokens alike.

A program takes a tile of queries with all the query heads that share one KV head, so that keys and
values are read once for all of them. It walks over the keys with a running softmax (Milakov and
Gimelshein 2018; Dao et al. 2022). Where queries are few, the keys of a request are split among
programs (Dao et al. 2023), and ``combine_splits`` puts the parts together. How they are split
depends on the request's own length alone, never on the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier

LOG2_E = tl.constexpr(1.4426950408889634)
# A step's tables are parts of one transfer, and begin anywhere; as wide as its longest request. A
# kernel for each such case would be compiled in the midst of serving.
STEP_TABLES = [
    "tile_requests", "tile_rows", "tile_starts", "query_start", "context_lens", "block_table",
]  # fmt: skip
STEP_SIZES = ["table_stride"]


@triton.jit
def split_size(context, SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr):
    """Keys of each split of a request with ``context`` tokens in the cache."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, SPLITS), MIN_SPLIT) * MIN_SPLIT, MIN_SPLIT)


@triton.jit(do_not_specialize=STEP_SIZES, do_not_specialize_on_alignment=STEP_TABLES)
def paged_attention(
    query,  # [tokens, heads, KEY_DIM]
    keys,  # [blocks, PAGE, kv_heads, KEY_DIM]
    values,  # [blocks, PAGE, kv_heads, VALUE_DIM]
    key_scales, value_scales,  # int32 [blocks, kv_heads, PAGE / 2], see ``load_rows``; if SCALED
    out,  # [tokens, heads, VALUE_DIM]; with splits float32 [rows, heads, SPLITS, VALUE_DIM]
    highest, sums,  # float32 [rows, heads, SPLITS], used with splits alone
    sinks,  # float32 [heads]
    tile_requests, tile_rows,  # int32 [tiles]: requests, and with splits first rows of ``out``
    tile_starts,  # int32 [tiles]: first query of each, counted within its request
    query_start, context_lens, block_table,  # int32, as in ``AttentionMetadata``
    table_stride, heads, query_token, query_head,  # strides, in elements, like those that follow
    key_block, key_token, key_head, value_block, value_token, value_head,
    scale, soft_cap, window,
    GROUP: tl.constexpr,  # query heads of a KV head
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr, VALUE_TILE: tl.constexpr,  # rounded up to powers of two
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # queries times heads of a tile
    KEYS: tl.constexpr,  # keys that are looked at together
    SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr, SCALED: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_earlier(OVERLAPS)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    request, first, part = place_of_tile(tile_requests, tile_starts, tile_rows)
    begin = tl.load(query_start + request)
    num_queries = tl.load(query_start + request + 1) - begin
    context = tl.load(context_lens + request)
    earlier = context - num_queries  # tokens before this step's
    rows = tl.arange(0, ROWS)
    token, head = first + rows // GROUP, kv_head * GROUP + rows % GROUP
    is_row = (rows < ROWS // GROUP * GROUP) & (token < num_queries)
    row_at = (begin + token).to(tl.int64)
    out_row = (part + rows // GROUP if SPLITS > 1 else row_at).to(tl.int64) * heads + head
    start, all_seen, end = span(
        context, earlier + first, split, window, ROWS // GROUP, KEYS, SPLITS, MIN_SPLIT, HAS_WINDOW
    )
    if SPLITS > 1 and start >= end:  # most splits of a short request: nothing is read
        tl.store(highest + out_row * SPLITS + split, float("-inf"), mask=is_row)
        tl.store(sums + out_row * SPLITS + split, 0.0, mask=is_row)
        return
    key_dims, value_dims = tl.arange(0, KEY_TILE)[None, :], tl.arange(0, VALUE_TILE)[None, :]
    query_at = query + row_at[:, None] * query_token + head[:, None] * query_head + key_dims
    q = tl.load(query_at, mask=is_row[:, None] & (key_dims < KEY_DIM), other=0.0).to(DOT)
    top, total = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    sum_of_values = tl.zeros((ROWS, VALUE_TILE), tl.float32)
    table = block_table + request.to(tl.int64) * table_stride
    top, total, sum_of_values = _attend(
        start, all_seen, end, earlier + token, top, total, sum_of_values, q, table, keys, values,
        key_scales, value_scales, kv_head, key_block, key_token, key_head, value_block,
        value_token, value_head, key_dims, value_dims, scale, soft_cap, window,
        KEY_DIM, VALUE_DIM, PAGE, KEYS, HAS_CAP, HAS_WINDOW, SCALED, DOT,
    )  # fmt: skip
    _keep(
        top, total, sum_of_values, out, highest, sums, sinks, out_row, head, is_row, split,
        value_dims, VALUE_DIM, SPLITS, HAS_SINKS,
    )  # fmt: skip


@triton.jit
def place_of_tile(tile_requests, tile_starts, tile_rows):
    """The request of this program, its first query there, and the row of its first part."""
    tile = tl.program_id(0)
    return tl.load(tile_requests + tile), tl.load(tile_starts + tile), tl.load(tile_rows + tile)


@triton.jit
def span(
    context, position, split, window, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """The keys of this program that any query sees, first and end; between, where all see all.

    ``position`` is that of the first query. Up to the one between, a multiple of KEYS, nothing is
    masked; with a window it lies before the first.
    """
    start, end = 0, tl.minimum(context, position + QUERIES)
    if HAS_WINDOW:
        start = tl.maximum(position - window + 1, 0)
    if SPLITS > 1:
        size = split_size(context, SPLITS, MIN_SPLIT)
        start = tl.maximum(start, split * size)
        end = tl.minimum(end, (split + 1) * size)
    all_seen = start // KEYS * KEYS
    if not HAS_WINDOW:
        all_seen = tl.maximum(start, tl.minimum(end, position + 1) // KEYS * KEYS)
    return start, all_seen, end


@triton.jit
def _keep(
    top, total, sum_of_values, out, highest, sums, sinks, out_row, head, is_row, split, value_dims,
    VALUE_DIM: tl.constexpr, SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Write what a program found: its part, or the rows' outputs."""
    mask = is_row[:, None] & (value_dims < VALUE_DIM)
    if SPLITS > 1:
        at_split = out_row * SPLITS + split
        tl.store(highest + at_split, top, mask=is_row)
        tl.store(sums + at_split, total, mask=is_row)
        place = out + at_split[:, None] * VALUE_DIM + value_dims
        tl.store(place, sum_of_values, mask=mask)
    else:
        if HAS_SINKS:
            sink = tl.load(sinks + head, mask=is_row, other=0.0) * LOG2_E
            higher = tl.maximum(top, sink)
            shrink = tl.exp2(top - higher)
            total = total * shrink + tl.exp2(sink - higher)
            sum_of_values = sum_of_values * shrink[:, None]
        total = tl.where(total > 0, total, 1.0)
        place = out + out_row[:, None] * VALUE_DIM + value_dims
        tl.store(place, sum_of_values / total[:, None], mask=mask)


@triton.jit
def _attend(
    start, all_seen, end, position, top, total, sum_of_values, q, table, keys, values, key_scales,
    value_scales, kv_head, key_block, key_token, key_head, value_block, value_token, value_head,
    key_dims, value_dims, scale, soft_cap, window,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr, SCALED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Walk over the keys from ``start`` to ``end``; up to ``all_seen`` nothing is masked."""
    for at in range(start, all_seen, KEYS):
        top, total, sum_of_values = _attend_tile(
            at, start, end, position, top, total, sum_of_values, q, table, keys, values,
            key_scales, value_scales, kv_head, key_block, key_token, key_head, value_block,
            value_token, value_head, key_dims, value_dims, scale, soft_cap, window,
            KEY_DIM, VALUE_DIM, PAGE, KEYS, HAS_CAP, HAS_WINDOW, False, SCALED, DOT,
        )  # fmt: skip
    for at in range(all_seen, end, KEYS):
        top, total, sum_of_values = _attend_tile(
            at, start, end, position, top, total, sum_of_values, q, table, keys, values,
            key_scales, value_scales, kv_head, key_block, key_token, key_head, value_block,
            value_token, value_head, key_dims, value_dims, scale, soft_cap, window,
            KEY_DIM, VALUE_DIM, PAGE, KEYS, HAS_CAP, HAS_WINDOW, True, SCALED, DOT,
        )  # fmt: skip
    return top, total, sum_of_values


@triton.jit
def _attend_tile(
    at, start, end, position, top, total, sum_of_values, q, table, keys, values, key_scales,
    value_scales, kv_head, key_block, key_token, key_head, value_block, value_token, value_head,
    key_dims, value_dims, scale, soft_cap, window,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    MASKED: tl.constexpr,
    SCALED: tl.constexpr,
    DOT: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: the keys ``at`` to ``at + KEYS``."""
    seen = at + tl.arange(0, KEYS)
    exists = seen < end
    if HAS_WINDOW:
        exists = exists & (seen >= start)
    block = tl.load(table + seen // PAGE, mask=exists, other=0).to(tl.int64)
    offset = seen % PAGE
    k = load_rows(
        keys, key_scales, block, offset, exists, kv_head, key_block, key_token, key_head, key_dims,
        KEY_DIM, PAGE, MASKED, SCALED, DOT,
    )  # fmt: skip
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if HAS_CAP:
        # tanh by way of exp: 1 - 2 / (exp(2 x) + 1).
        scores = soft_cap * (1 - 2 / (tl.exp(2 * scores / soft_cap) + 1))
    scores = scores * LOG2_E
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
    v = load_rows(
        values, value_scales, block, offset, exists, kv_head, value_block, value_token, value_head,
        value_dims, VALUE_DIM, PAGE, MASKED, SCALED, DOT,
    )  # fmt: skip
    sum_of_values = sum_of_values * shrink[:, None]
    sum_of_values = tl.dot(weights.to(DOT), v, sum_of_values, input_precision="ieee")
    return higher, total, sum_of_values


@triton.jit
def load_rows(
    rows,  # [blocks, PAGE, kv_heads, DIM]
    # bfloat16 [blocks, kv_heads, PAGE] as int32, the scales of two tokens each: what is copied
    # ahead of its use takes 4 bytes or more
    scales,
    block, offset, exists,  # [tile]: whether there is such a row; else it is not read, but zeros
    kv_head, block_stride, token_stride, head_stride, dims,
    DIM: tl.constexpr, PAGE: tl.constexpr,
    MASKED: tl.constexpr,  # whether some may not exist
    SCALED: tl.constexpr,  # rows are int8, each with a scale, as ``layers.scaled_rows`` says
    DOT: tl.constexpr,
):  # fmt: skip
    """Keys or values of some tokens and one KV head, decoded: [tile, dims]."""
    place = rows + block * block_stride + offset * token_stride + kv_head * head_stride
    mask = dims < DIM
    if MASKED:
        mask = mask & exists[:, None]
    numbers = tl.load(place[:, None] + dims, mask=mask, other=0.0)
    if SCALED:
        pair_at = scales + block * (block_stride // 4) + (kv_head * PAGE + offset) // 2
        pair = tl.load(pair_at, mask=exists, other=0)
        scale = tl.where(offset % 2 == 0, pair << 16, pair & -65536).to(tl.float32, bitcast=True)
        # Such products are exact in float32, so that bfloat16's are rounded once, as they should.
        WIDE: tl.constexpr = DOT if DOT.is_bf16() else tl.float32
        numbers = numbers.to(WIDE) * scale.to(WIDE)[:, None]
    return numbers.to(DOT)


@triton.jit(do_not_specialize_on_alignment=["rows"])
def combine_splits(
    parts,  # float32 [rows, heads, SPLITS, VALUE_DIM]
    highest,  # float32 [rows, heads, SPLITS], like ``sums``
    sums,
    sinks,  # float32 [heads]
    out,  # [tokens, heads, VALUE_DIM]
    rows,  # int32: tokens whose parts these are
    heads,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """The softmax over all splits of a row, in the order of the splits."""
    wait_for_earlier(OVERLAPS)
    token, head = tl.load(rows + tl.program_id(0)).to(tl.int64), tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * heads + head
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, VALUE_TILE)
    tops = tl.load(highest + row * SPLITS + splits)
    top = tl.max(tops, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head) * LOG2_E
        top = tl.maximum(top, sink)
    level = tl.where(top == float("-inf"), 0.0, top)
    factors = tl.exp2(tops - level)
    total = tl.sum(tl.load(sums + row * SPLITS + splits) * factors, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - level)
    part = tl.load(
        parts + (row * SPLITS + splits)[:, None] * VALUE_DIM + dims[None, :],
        mask=(tops > float("-inf"))[:, None] & (dims[None, :] < VALUE_DIM),
        other=0.0,
    )
    attended = tl.sum(part * factors[:, None], 0) / tl.where(total > 0, total, 1.0)
    out_at = out + (token * heads + head) * VALUE_DIM + dims
    tl.store(out_at, attended, mask=dims < VALUE_DIM)
