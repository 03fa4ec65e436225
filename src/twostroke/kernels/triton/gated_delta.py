"""The gated delta rule, and the convolution before it, see ``layers.gated_delta``.

States are changed in place. A program takes all tokens of a request, one by one: a token's numbers
depend neither on other requests nor on where the prompt is cut. ``delta_chunks`` takes prompts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def convolve_tokens(
    x,  # [tokens, channels]
    history,  # [slots, KERNEL - 1, channels]: the inputs just before
    weight,  # [channels, KERNEL]
    out,  # [tokens, channels]
    segments,  # int64 [segments, 4]: first row, end, slot, and another that gets a copy or -1
    firsts,  # int64 [requests + 1]: where the segments of each begin
    channels,
    x_stride,
    KERNEL: tl.constexpr,
    TILE: tl.constexpr,  # channels of a program
    OVERLAPS: tl.constexpr,
):
    """Write ``silu`` of the causal convolution, summed tap by tap, and the new history."""
    wait_for_earlier(OVERLAPS)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = channel < channels
    last = tl.load(firsts + tl.program_id(0) + 1)
    for segment in range(tl.load(firsts + tl.program_id(0)), last):
        begin, end, slot, copy = segment_at(segments + segment * 4)
        own = history + slot * (KERNEL - 1) * channels + channel
        for token in range(begin, end):
            total = tl.zeros((TILE,), tl.float32)
            for tap in tl.static_range(KERNEL):
                value = _input_at(
                    x, own, token - (KERNEL - 1) + tap, begin, channel, channels, x_stride, inside,
                    KERNEL,
                )  # fmt: skip
                factor = tl.load(weight + channel * KERNEL + tap, mask=inside, other=0.0)
                total += value.to(tl.float32) * factor.to(tl.float32)
            tl.store(out + token * channels + channel, silu_of(total), mask=inside)
        other = history + tl.maximum(copy, 0) * (KERNEL - 1) * channels + channel
        tl.debug_barrier()
        for place in tl.static_range(KERNEL - 1):  # each takes what lies further on: in place
            value = _input_at(
                x, own, end - (KERNEL - 1) + place, begin, channel, channels, x_stride, inside,
                KERNEL,
            )  # fmt: skip
            tl.store(own + place * channels, value, mask=inside)
            tl.store(other + place * channels, value, mask=inside & (copy >= 0))
        tl.debug_barrier()


@triton.jit
def _input_at(
    x, history, token, begin, channel, channels, x_stride, inside, KERNEL: tl.constexpr
):  # fmt: skip
    """The input of a token, which may lie before the segment's first."""
    is_new = token >= begin
    new = tl.load(
        x + tl.maximum(token, begin) * x_stride + channel, mask=inside & is_new, other=0.0
    )
    place = tl.minimum(token - begin + (KERNEL - 1), KERNEL - 2)
    old = tl.load(history + place * channels, mask=inside & (token < begin), other=0.0)
    return tl.where(is_new, new, old)


@triton.jit
def apply_delta(
    active,  # [tokens, 2 * keys + values]: queries, keys, values of all heads
    gates,  # float32 [tokens, 2 * HEADS]: of rates, then of decays
    log_rates,  # [HEADS]
    bias,  # [HEADS]
    gate,  # [tokens, HEADS * VALUE_DIM]
    norm,  # [VALUE_DIM]
    states,  # [slots, HEADS, KEY_DIM, VALUE_DIM]
    out,  # [tokens, HEADS * VALUE_DIM]
    segments, firsts,  # see ``convolve_tokens``
    active_stride, gate_stride, eps,
    scale,  # of queries
    HEADS: tl.constexpr, GROUP: tl.constexpr,  # value heads, and those of a key head
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEY_TILE: tl.constexpr, VALUE_TILE: tl.constexpr,  # rounded up to powers of two
    MANY: tl.constexpr,  # requests with so many tokens are left out, see ``delta_chunks``
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """A value head of a request: recurrence, norm, and gate, rounded where the layer rounds."""
    wait_for_earlier(OVERLAPS)
    head, k, v = tl.program_id(1), tl.arange(0, KEY_TILE), tl.arange(0, VALUE_TILE)
    is_key, is_value = k < KEY_DIM, v < VALUE_DIM
    inside = is_key[:, None] & is_value[None, :]
    matrix = head * KEY_DIM * VALUE_DIM + k[:, None] * VALUE_DIM + v[None, :]
    slot_size: tl.constexpr = HEADS * KEY_DIM * VALUE_DIM
    keys: tl.constexpr = HEADS // GROUP * KEY_DIM
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(firsts + tl.program_id(0) + 1)
    if tokens_between(segments, first, last) >= MANY:
        return
    log_rate, shift = tl.load(log_rates + head).to(tl.float32), tl.load(bias + head).to(tl.float32)
    factor = tl.load(norm + v, mask=is_value, other=0.0).to(tl.float32)
    if first == last:  # of a recorded pass that has more rows than requests
        return
    _, _, slot, _ = segment_at(segments + first * 4)
    state = tl.load(states + slot * slot_size + matrix, mask=inside, other=0.0).to(tl.float32)
    for segment in range(first, last):
        begin, end, slot, copy = segment_at(segments + segment * 4)
        for token in range(begin, end):
            own = active + token * active_stride
            at = head // GROUP * KEY_DIM + k
            query = _unit(tl.load(own + at, mask=is_key, other=0.0).to(tl.float32)) * scale
            key = _unit(tl.load(own + keys + at, mask=is_key, other=0.0).to(tl.float32))
            at = 2 * keys + head * VALUE_DIM + v
            value = tl.load(own + at, mask=is_value, other=0.0).to(tl.float32)
            rate = tl.sigmoid(tl.load(gates + token * 2 * HEADS + head))
            decay = tl.load(gates + token * 2 * HEADS + HEADS + head)
            decay = tl.exp(log_decay(decay, log_rate, shift))
            state = state * decay
            added = (value - tl.sum(state * key[:, None], 0)) * rate
            state = state + key[:, None] * added[None, :]
            state = rounded_to(state, states.dtype.element_ty)  # as it is kept
            mixed = rounded_to(tl.sum(state * query[:, None], 0), out.dtype.element_ty)
            unit = mixed * tl.rsqrt(tl.sum(mixed * mixed, 0) / VALUE_DIM + eps)
            normed = rounded_to(unit, out.dtype.element_ty) * factor
            at = head * VALUE_DIM + v
            opened = tl.load(gate + token * gate_stride + at, mask=is_value, other=0.0)
            gated = rounded_to(normed, out.dtype.element_ty) * silu_of(opened.to(tl.float32))
            tl.store(out + token * HEADS * VALUE_DIM + at, gated, mask=is_value)
        tl.store(states + slot * slot_size + matrix, state, mask=inside)
        tl.store(states + tl.maximum(copy, 0) * slot_size + matrix, state, inside & (copy >= 0))


@triton.jit
def tokens_between(segments, first, last):
    """Tokens of a request with these segments, which follow on each other; of none, none."""
    begin, end = tl.load(segments + first * 4), tl.load(segments + tl.maximum(last - 1, 0) * 4 + 1)
    return tl.where(last > first, end - begin, 0)


@triton.jit
def segment_at(at):
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


@triton.jit
def rounded_to(x, TYPE: tl.constexpr):
    return x.to(TYPE).to(tl.float32)


@triton.jit
def silu_of(x):
    return x * tl.sigmoid(x)


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + 1e-6)


@triton.jit
def log_decay(x, log_rate, shift):
    """``-exp(log_rate) * softplus(x + shift)``."""
    x = x + shift
    exact = tl.exp(tl.minimum(x, 20.0))
    above = 1 + exact
    # Kahan's log(1 + e): what e loses when 1 is added cancels.
    small = tl.where(above == 1, 1.0, above - 1)
    soft = tl.where(above == 1, exact, tl.log(above) * exact / small)
    return -tl.exp(log_rate) * tl.where(x > 20, x, soft)
