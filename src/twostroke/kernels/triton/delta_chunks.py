"""The gated delta rule over many tokens of a request, 32 at a time (Yang et al. 2024).

Let ``S`` be the state before a chunk, ``c[i]`` the product of the decays up to its token i, and
``r`` the rates. What the tokens add to the state, rows of ``U``, solves a triangular system, since
each looks up what those before it have added:

    (I + A) U = r * V - (r * c * K) S,  A[i, j] = r[i] c[i] / c[j] (k[i] . k[j]) for j < i

``solve_chunks`` finds ``T = (I + A)^-1`` and with it both right sides, of all chunks side by side.
``pass_chunks`` walks over a request's chunks: ``U = T r V - (T r c K) S``, then

    out[i] = c[i] q[i] S + sum over j <= i of c[i] / c[j] (q[i] . k[j]) U[j]
    S' = c[last] S + sum over j of c[last] / c[j] k[j] U[j]^T

All quotients are at most 1: they are differences of sums of logarithms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.gated_delta import (
    log_decay,
    rounded_to,
    segment_at,
    silu_of,
    tokens_between,
)
from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit(do_not_specialize_on_alignment=["chunks"])
def solve_chunks(
    active,  # [tokens, 2 * keys + values], see ``apply_delta``
    gates,  # float32 [tokens, 2 * HEADS]
    log_rates,  # [HEADS]
    bias,  # [HEADS]
    chunks,  # int64 [chunks, 2]: first row of each, and end
    looked_up,  # [chunks * CHUNK, HEADS, KEY_DIM]: T r c K
    added,  # [chunks * CHUNK, HEADS, VALUE_DIM]: T r V
    decays,  # float32 [chunks * CHUNK, HEADS]: logarithms of c
    active_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):
    """One value head of a chunk; rows beyond its end add and decay nothing."""
    wait_for_earlier(OVERLAPS)
    chunk, head, i = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, CHUNK)
    begin, end = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
    row, is_row = begin + i, begin + i < end
    k, v = tl.arange(0, KEY_TILE), tl.arange(0, VALUE_TILE)
    keys: tl.constexpr = HEADS // GROUP * KEY_DIM
    own = active + row[:, None] * active_stride
    offsets = own + keys + head // GROUP * KEY_DIM + k[None, :]
    key = tl.load(offsets, mask=is_row[:, None] & (k < KEY_DIM)[None, :], other=0.0).to(tl.float32)
    key = unit_rows(key)
    gate = gates + row * 2 * HEADS + head
    rate = tl.where(is_row, tl.sigmoid(tl.load(gate, mask=is_row, other=0.0)), 0.0)
    log_rate, shift = tl.load(log_rates + head).to(tl.float32), tl.load(bias + head).to(tl.float32)
    logs = log_decay(tl.load(gate + HEADS, mask=is_row, other=0.0), log_rate, shift)
    sums = tl.cumsum(tl.where(is_row, logs, 0.0), 0)
    alike = tl.dot(key.to(DOT), tl.trans(key.to(DOT)), input_precision="ieee")
    solved = tl.where(
        i[:, None] > i[None, :],
        -alike * rate[:, None] * tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0)),
        0.0,
    )
    solved = _inverse(solved, i, CHUNK).to(DOT)
    weighted = (key * (rate * tl.exp(sums))[:, None]).to(DOT)
    out = (chunk * CHUNK + i[:, None]) * HEADS + head
    tl.store(
        looked_up + out * KEY_DIM + k[None, :],
        tl.dot(solved, weighted, input_precision="ieee"),
        mask=(k < KEY_DIM)[None, :],
    )
    offsets = own + 2 * keys + head * VALUE_DIM + v[None, :]
    value = tl.load(offsets, mask=is_row[:, None] & (v < VALUE_DIM)[None, :], other=0.0)
    weighted = (value.to(tl.float32) * rate[:, None]).to(DOT)
    tl.store(
        added + out * VALUE_DIM + v[None, :],
        tl.dot(solved, weighted, input_precision="ieee"),
        mask=(v < VALUE_DIM)[None, :],
    )
    tl.store(decays + (chunk * CHUNK + i) * HEADS + head, sums)


@triton.jit(do_not_specialize_on_alignment=["chunk_firsts"])
def pass_chunks(
    active,
    states,  # [slots, HEADS, KEY_DIM, VALUE_DIM]
    out,  # [tokens, HEADS * VALUE_DIM], before norm and gate
    segments,  # see ``apply_delta``, like ``firsts``
    firsts,
    chunk_firsts,  # int64 [segments]: the first chunk of each
    looked_up, added, decays, active_stride,
    scale,  # of queries
    HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr,
    VALUES: tl.constexpr,  # elements of a value that a program takes
    CHUNK: tl.constexpr,
    MANY: tl.constexpr,  # requests with fewer tokens are left out
    DOT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Some columns of a value head's state, chunk by chunk of a request."""
    wait_for_earlier(OVERLAPS)
    head, i = tl.program_id(1), tl.arange(0, CHUNK)
    k, v = tl.arange(0, KEY_TILE), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    is_key, is_value = (k < KEY_DIM)[None, :], (v < VALUE_DIM)[None, :]
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(firsts + tl.program_id(0) + 1)
    if tokens_between(segments, first, last) < MANY:
        return
    matrix = head * KEY_DIM * VALUE_DIM + k[:, None] * VALUE_DIM + v[None, :]
    inside = (k < KEY_DIM)[:, None] & is_value
    slot_size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    keys: tl.constexpr = HEADS // GROUP * KEY_DIM
    _, _, slot, _ = segment_at(segments + first * 4)
    state = tl.load(states + slot * slot_size + matrix, mask=inside, other=0.0).to(tl.float32)
    for segment in range(first, last):
        begin, end, slot, copy = segment_at(segments + segment * 4)
        chunk = tl.load(chunk_firsts + segment)
        for start in range(begin, end, CHUNK):
            # Offsets within a chunk are of 32 bits: addresses of each element take registers.
            is_row = (start + i < end)[:, None]
            own = active + start * active_stride + head // GROUP * KEY_DIM
            offsets = i[:, None] * active_stride + k[None, :]
            query = tl.load(own + offsets, mask=is_row & is_key, other=0.0).to(tl.float32)
            key = tl.load(own + keys + offsets, mask=is_row & is_key, other=0.0).to(tl.float32)
            place = chunk * CHUNK * HEADS + head
            offsets = i[:, None] * HEADS * KEY_DIM + k[None, :]
            seen = tl.load(looked_up + place * KEY_DIM + offsets, mask=is_key, other=0.0).to(DOT)
            offsets = i[:, None] * HEADS * VALUE_DIM + v[None, :]
            new = tl.load(added + place * VALUE_DIM + offsets, mask=is_value, other=0.0).to(
                tl.float32
            )
            sums = tl.load(decays + place + i * HEADS)
            state, mixed = _take_chunk(
                state, unit_rows(query) * scale, unit_rows(key), seen, new, sums,
                tl.load(decays + place + (CHUNK - 1) * HEADS), i, DOT,
            )  # fmt: skip
            own = out + (start * HEADS + head) * VALUE_DIM
            tl.store(own + offsets, mixed, mask=is_row & is_value)
            chunk += 1
        state = rounded_to(state, states.dtype.element_ty)  # as it is kept
        tl.store(states + slot * slot_size + matrix, state, mask=inside)
        tl.store(states + tl.maximum(copy, 0) * slot_size + matrix, state, inside & (copy >= 0))


@triton.jit
def _take_chunk(state, query, key, seen, new, sums, total, i, DOT: tl.constexpr):
    """The state after a chunk, and what its tokens get."""
    before = state.to(DOT)
    new = (new - tl.dot(seen, before, input_precision="ieee")).to(DOT)
    shares = tl.dot(query.to(DOT), tl.trans(key.to(DOT)), input_precision="ieee")
    fades = tl.exp(tl.minimum(sums[:, None] - sums[None, :], 0.0))
    shares = tl.where(i[:, None] >= i[None, :], shares * fades, 0.0)
    faded = (query * tl.exp(sums)[:, None]).to(DOT)
    mixed = tl.dot(faded, before, input_precision="ieee")
    mixed = tl.dot(shares.to(DOT), new, mixed, input_precision="ieee")
    faded = (key * tl.exp(total - sums)[:, None]).to(DOT)
    return tl.dot(tl.trans(faded), new, state * tl.exp(total), input_precision="ieee"), mixed


@triton.jit(do_not_specialize_on_alignment=["chunks"])
def finish_chunks(
    gate,  # [tokens, HEADS * VALUE_DIM]
    norm,  # [VALUE_DIM]
    out,  # [tokens, HEADS * VALUE_DIM]
    chunks,  # see ``solve_chunks``
    gate_stride,
    eps,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Norm and gate of a value head of a chunk, in place, rounded as in ``apply_delta``."""
    wait_for_earlier(OVERLAPS)
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin, end = tl.load(chunks + chunk * 2), tl.load(chunks + chunk * 2 + 1)
    row, v = begin + tl.arange(0, CHUNK), tl.arange(0, VALUE_TILE)
    inside = (row < end)[:, None] & (v < VALUE_DIM)[None, :]
    offsets = head * VALUE_DIM + v[None, :]
    place = out + row[:, None] * HEADS * VALUE_DIM + offsets
    mixed = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    unit = mixed * tl.rsqrt(tl.sum(mixed * mixed, 1) / VALUE_DIM + eps)[:, None]
    factor = tl.load(norm + v, mask=v < VALUE_DIM, other=0.0).to(tl.float32)[None, :]
    normed = rounded_to(unit, out.dtype.element_ty) * factor
    opened = tl.load(gate + row[:, None] * gate_stride + offsets, mask=inside, other=0.0)
    gated = rounded_to(normed, out.dtype.element_ty) * silu_of(opened.to(tl.float32))
    tl.store(place, gated, mask=inside)


@triton.jit
def _inverse(below, i, CHUNK: tl.constexpr):
    """The inverse of ``I - below``, which is zero on the diagonal and above, row after row."""
    for each in range(1, CHUNK):
        of_row = tl.sum(tl.where((i == each)[:, None], below, 0.0), 0)
        of_row += tl.sum(of_row[:, None] * below, 0)  # rows before it are solved
        below = tl.where((i == each)[:, None], of_row[None, :], below)
    return below + tl.where(i[:, None] == i[None, :], 1.0, 0.0)


@triton.jit
def unit_rows(x):
    """Rows ``[CHUNK, KEY_TILE]`` of length 1."""
    return x * tl.rsqrt(tl.sum(x * x, 1) + 1e-6)[:, None]
