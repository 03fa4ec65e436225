"""Penalties, and the draw under temperature, top-k, top-p and min-p, without a sort.

Weights are integers, as in ``sampling.drawing``, so that sums are the same in any order. How far a
token lies below the likeliest, over the temperature, is its depth; as a float that is not negative
its bits rise with it. Top-k and top-p keep what lies above some depth, and of the tokens at that
depth the first few. Its bits are found four at a time: ``narrow`` sums up what lies under each of
16 digits, and the next launch reads which of them is the one. A row is cut in chunks, a program
each.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier

LOG2_E = tl.constexpr(1.4426950408889634)
# The natural logarithm of 2 in two parts: a small integer times the first is exact.
LN2_HIGH, LN2_LOW = tl.constexpr(0.693359375), tl.constexpr(-2.12194440e-4)
INFINITE = tl.constexpr(0x7F800000)  # the bits of infinity
NEVER = tl.constexpr(1 << 62)  # more than the weight, or the number, of all tokens


@triton.jit(do_not_specialize=["pairs"], do_not_specialize_on_alignment=["tokens"])
def penalize_pairs(
    logits,  # float32 [rows, vocab]
    rows,  # int64 [pairs]
    tokens,  # int64 [pairs]
    counts,  # float32 [pairs]: how often each is in the answer
    repetition, presence, frequency,  # float32 [rows]
    pairs,
    row_stride,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The penalties of ``sampling.penalties``, operation by operation; pairs are distinct."""
    wait_for_earlier(OVERLAPS)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < pairs
    row = tl.load(rows + at, mask=inside, other=0)
    place = logits + row * row_stride + tl.load(tokens + at, mask=inside, other=0)
    count = tl.load(counts + at, mask=inside, other=0.0)
    value = tl.load(place, mask=inside, other=0.0)
    factor = tl.load(repetition + row, mask=inside, other=1.0)
    value = tl.where(value > 0, tl.div_rn(value, factor), value * factor)
    less = value - tl.load(presence + row, mask=inside, other=0.0)
    less = less - tl.load(frequency + row, mask=inside, other=0.0) * count
    tl.store(place, tl.where(count > 0, less, value), mask=inside)


@triton.jit(do_not_specialize=["step", "num_rows"])
def narrow(
    logits,  # float32 [.., vocab]
    rows,  # int64 [rows]: which of them
    highest, temperatures,  # float32 [rows]
    top_k,  # int64 [rows]
    top_p,  # float64 [rows]
    kept,  # int64 [rows, 3]: depth, count at that depth, and weight that top-k keeps
    searches,  # int64 [8, rows, 4]: before each step depth, count and weight above it, and need
    sums,  # int64 [8, rows, chunks, 2, 16]: counts and weights under each digit
    step,
    vocab, row_stride, num_rows, chunks,
    CHUNK: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr,
    BY_WEIGHT: tl.constexpr,  # top-p, else top-k
    HAS_TOP_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Find four bits of a depth: the sums of one chunk of a row."""
    wait_for_earlier(OVERLAPS)
    row, chunk = tl.program_id(0), tl.program_id(1)
    depth, above, weight_above, needed = _search_so_far(
        row, step, searches, sums, top_k, top_p, kept, num_rows, chunks, CHUNKS, BY_WEIGHT,
        HAS_TOP_K,
    )  # fmt: skip
    if chunk == 0:
        _keep_search(searches, step, row, num_rows, depth, above, weight_above, needed)
    shift, digits = 28 - 4 * step, tl.arange(0, 16)[None, :]
    level, temperature = tl.load(highest + row), tl.load(temperatures + row)
    own = logits + tl.load(rows + row) * row_stride
    counts = tl.zeros((TILE, 16), tl.int32)
    weights = tl.zeros((TILE, 16), tl.int64)
    for at in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), TILE):
        column = chunk * CHUNK + at + tl.arange(0, TILE)
        inside = column < vocab
        bits, weight = _depth_and_weight(own, column, inside, level, temperature)
        is_open = inside & (((bits >> shift) >> 4) == depth)
        under = is_open[:, None] & (((bits >> shift) & 15)[:, None] == digits)
        counts += under.to(tl.int32)
        weights += tl.where(under, weight[:, None], 0)
    place = sums + (((step * num_rows + row) * chunks + chunk) * 32).to(tl.int64)
    tl.store(place + tl.arange(0, 16), tl.sum(counts.to(tl.int64), 0))
    tl.store(place + 16 + tl.arange(0, 16), tl.sum(weights, 0))


@triton.jit(do_not_specialize=["num_rows"])
def end_search(
    top_k, top_p, kept, searches, sums, num_rows, chunks,  # see ``narrow``
    CHUNKS: tl.constexpr, BY_WEIGHT: tl.constexpr, HAS_TOP_K: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """End a search: which depth is the last, and how many tokens are kept at it."""
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0)
    depth, above, weight_above, needed = _search_so_far(
        row, 8, searches, sums, top_k, top_p, kept, num_rows, chunks, CHUNKS, BY_WEIGHT, HAS_TOP_K
    )  # fmt: skip
    weight = _weight_at(depth)
    place = kept + row * 3
    if BY_WEIGHT:
        # Of equal weights as many as it takes; where the sum was rounded up beyond all, each.
        missing = (needed - weight_above + weight - 1) // tl.maximum(weight, 1)
        missing = tl.where(weight > 0, missing, NEVER)
        if HAS_TOP_K:
            last, ties = tl.load(place), tl.load(place + 1)
            missing = tl.where(depth == last, tl.minimum(missing, ties), missing)
            missing = tl.where(depth > last, ties, missing)
            depth = tl.minimum(depth, last)
        tl.store(place, depth)
        tl.store(place + 1, missing)
    else:
        ties = tl.load(top_k + row) - above
        tl.store(place, depth)
        tl.store(place + 1, ties)
        tl.store(place + 2, weight_above + ties * weight)


@triton.jit
def weigh(
    logits, rows, highest, temperatures, kept,  # see ``narrow``
    least,  # int64 [rows]: lighter tokens are dropped
    parts,  # int64 [rows, chunks, 2]: weight above the last depth, and tokens at it
    vocab, row_stride, chunks,
    CHUNK: tl.constexpr, TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """What a chunk of a row adds to the weight of all that is kept."""
    wait_for_earlier(OVERLAPS)
    row, chunk = tl.program_id(0), tl.program_id(1)
    level, temperature = tl.load(highest + row), tl.load(temperatures + row)
    last, min_weight = tl.load(kept + row * 3), tl.load(least + row)
    own = logits + tl.load(rows + row) * row_stride
    weights, ties = tl.zeros((TILE,), tl.int64), tl.zeros((TILE,), tl.int64)
    for at in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), TILE):
        column = chunk * CHUNK + at + tl.arange(0, TILE)
        inside = column < vocab
        bits, weight = _depth_and_weight(own, column, inside, level, temperature)
        weights += tl.where(inside & (bits < last) & (weight >= min_weight), weight, 0)
        ties += (inside & (bits == last)).to(tl.int64)
    place = parts + (row * chunks + chunk) * 2
    tl.store(place, tl.sum(weights, 0))
    tl.store(place + 1, tl.sum(ties, 0))


@triton.jit
def pick_tokens(
    logits, rows, highest, temperatures, kept, least, parts,  # see ``weigh``
    uniforms,  # float64 [rows], in [0, 1)
    tokens,  # int64 [rows]
    vocab, row_stride, chunks,
    CHUNK: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The first token, by id, at which the running weight exceeds the uniform's share of all."""
    wait_for_earlier(OVERLAPS)
    row, number = tl.program_id(0), tl.arange(0, CHUNKS)
    level, temperature = tl.load(highest + row), tl.load(temperatures + row)
    last, most = tl.load(kept + row * 3), tl.load(kept + row * 3 + 1)
    min_weight, at_last = tl.load(least + row), _weight_at(last)
    at_last = tl.where(at_last >= min_weight, at_last, 0)
    place, exists = parts + (row * chunks + number) * 2, number < chunks
    ties = tl.load(place + 1, mask=exists, other=0)
    before = tl.cumsum(ties, 0) - ties
    taken = tl.minimum(tl.maximum(most - before, 0), ties)
    weights = tl.load(place, mask=exists, other=0) + taken * at_last
    total = tl.sum(weights, 0)
    target = (tl.load(uniforms + row) * total.to(tl.float64)).to(tl.int64)
    target = tl.minimum(target, total - 1)  # above 2**53 it may be rounded up to the total
    chunk = tl.sum((tl.cumsum(weights, 0) <= target).to(tl.int32), 0)
    weight_before = tl.sum(tl.where(number < chunk, weights, 0), 0)
    ties_before = tl.sum(tl.where(number < chunk, ties, 0), 0)
    own = logits + tl.load(rows + row) * row_stride
    picked = tl.full((), -1, tl.int32)
    for at in range(0, tl.minimum(CHUNK, vocab - chunk * CHUNK), TILE):
        column = chunk * CHUNK + at + tl.arange(0, TILE)
        inside = column < vocab
        bits, weight = _depth_and_weight(own, column, inside, level, temperature)
        is_tie = (inside & (bits == last)).to(tl.int64)
        rank = ties_before + tl.cumsum(is_tie, 0) - is_tie
        stays = (bits < last) | ((is_tie == 1) & (rank < most))
        weight = tl.where(inside & stays & (weight >= min_weight), weight, 0)
        passed = (weight_before + tl.cumsum(weight, 0) <= target).to(tl.int32)
        first = tl.sum(passed, 0)
        picked = tl.where((picked < 0) & (first < TILE), chunk * CHUNK + at + first, picked)
        weight_before += tl.sum(weight, 0)
        ties_before += tl.sum(is_tie, 0)
    # Of a row that failed: some token, as nothing is told of it.
    tl.store(tokens + row, tl.minimum(tl.maximum(picked, 0), vocab - 1).to(tl.int64))


@triton.jit
def _search_so_far(
    row, step, searches, sums, top_k, top_p, kept, num_rows, chunks,
    CHUNKS: tl.constexpr, BY_WEIGHT: tl.constexpr, HAS_TOP_K: tl.constexpr,
):  # fmt: skip
    """A search before ``step``: its depth gets the digit that the sums of the step before show."""
    depth = tl.full((), 0, tl.int64)
    above, weight_above = depth, depth
    needed = tl.load(top_k + row)
    if step > 0:
        earlier = searches + ((step - 1) * num_rows + row) * 4
        depth, above = tl.load(earlier), tl.load(earlier + 1)
        weight_above, needed = tl.load(earlier + 2), tl.load(earlier + 3)
        chunk, digit = tl.arange(0, CHUNKS)[:, None], tl.arange(0, 16)
        first = (((step - 1) * num_rows + row) * chunks).to(tl.int64) * 32
        place = sums + first + chunk * 32 + digit[None, :]
        counts = tl.sum(tl.load(place, mask=chunk < chunks, other=0), 0)
        weights = tl.sum(tl.load(place + 16, mask=chunk < chunks, other=0), 0)
        if BY_WEIGHT:
            if step == 1:
                total = tl.sum(weights, 0)
                if HAS_TOP_K:
                    total = tl.load(kept + row * 3 + 2)
                share = tl.load(top_p + row)
                needed = tl.ceil(share * total.to(tl.float64)).to(tl.int64)
                needed = tl.where(share < 1, needed, NEVER)
            reached = weight_above + tl.cumsum(weights, 0)
        else:
            reached = above + tl.cumsum(counts, 0)
        own = tl.minimum(tl.sum((reached < needed).to(tl.int32), 0), 15)
        depth = depth * 16 + own
        above += tl.sum(tl.where(digit < own, counts, 0), 0)
        weight_above += tl.sum(tl.where(digit < own, weights, 0), 0)
    return depth, above, weight_above, needed


@triton.jit
def _keep_search(searches, step, row, num_rows, depth, above, weight_above, needed):
    place = searches + (step * num_rows + row) * 4
    tl.store(place, depth)
    tl.store(place + 1, above)
    tl.store(place + 2, weight_above)
    tl.store(place + 3, needed)


@triton.jit
def _depth_and_weight(own, column, inside, level, temperature):
    """Bits of depths, int32, and weights, int64. What is no number weighs nothing."""
    logit = tl.load(own + column, mask=inside, other=float("-inf"))
    depth = tl.div_rn(level - logit, temperature + tl.zeros_like(logit))
    depth = tl.where(depth >= 0, depth, float("inf"))
    bits = depth.to(tl.int32, bitcast=True) & 0x7FFFFFFF  # of two zeros, too
    return bits, _weight_of(depth)


@triton.jit
def _weight_at(bits):
    """The weight of tokens at a depth, a scalar of its bits."""
    inside = tl.minimum(tl.maximum(bits, 0), INFINITE).to(tl.int32)
    return _weight_of(inside.to(tl.float32, bitcast=True))


@triton.jit
def _weight_of(depth):
    """``2**40 * exp(-depth)``, cut to an integer; off by some 2**-22 of itself at most.

    ``exp(-depth) = 2**-whole * 2**(rest / ln 2)``, where the rest is at most half of ln 2.
    """
    bounded = tl.minimum(depth, 64.0)  # exp(-64) is less than 2**-40
    whole = tl.floor(bounded * LOG2_E + 0.5)
    rest = (whole * LN2_HIGH - bounded) + whole * LN2_LOW
    power = ((127 + 40 - whole.to(tl.int32)) << 23).to(tl.float32, bitcast=True)
    return (tl.exp2(rest * LOG2_E) * power).to(tl.int64)
