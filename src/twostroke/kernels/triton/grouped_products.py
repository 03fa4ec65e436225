"""Products of rows with the weight of the expert that each goes to.

Rows are in the order of their experts (Gale et al. 2023, MegaBlocks): a tile has rows of one expert
alone, so that each weight is read once for all of an expert's rows in a tile, and those of experts
without rows never. Weights of 8 or 4 bits are decoded where they are multiplied, see
``quantized_products``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier
from twostroke.kernels.triton.quantized_products import decode_bytes, decode_nibbles, low_columns


@triton.jit
def multiply_grouped(
    x,  # [rows, INPUTS]
    weights,  # [experts, outputs, INPUTS], contiguous
    biases,  # [experts, outputs]
    out,  # [pairs, outputs]
    order,  # int64 [pairs]: which pair of a row and an expert comes next
    tile_experts,  # int32 [tiles]: the expert of each; below zero there is nothing to do
    tile_starts,  # int32 [tiles]: its first place in ``order``
    expert_ends,  # int32 [experts]: where an expert's pairs end there
    outputs,
    x_stride,
    PAIRS_OF_ROW: tl.constexpr,  # pair i is of row i // PAIRS_OF_ROW
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,  # pairs of a tile
    OUTPUTS: tl.constexpr,  # outputs of a program
    STEP: tl.constexpr,  # inputs of a step
    HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):
    """``x @ weights[expert].T + biases[expert]``, summed in float32 and rounded once."""
    wait_for_earlier(OVERLAPS)
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile)
    if expert < 0:
        return
    place = tl.load(tile_starts + tile) + tl.arange(0, ROWS)
    is_pair = place < tl.load(expert_ends + expert)
    pair = tl.load(order + place, mask=is_pair, other=0)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output, step = output < outputs, tl.arange(0, STEP)
    x_at = x + (pair // PAIRS_OF_ROW)[:, None] * x_stride + step[None, :]
    first = (expert.to(tl.int64) * outputs + output) * INPUTS
    weight_at = weights + first[:, None] + step[None, :]
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, INPUTS, STEP):
        inside = step[None, :] < INPUTS - at
        a = tl.load(x_at + at, mask=is_pair[:, None] & inside, other=0.0).to(DOT)
        b = tl.load(weight_at + at, mask=is_output[:, None] & inside, other=0.0).to(DOT)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    if HAS_BIAS:
        own = tl.load(biases + expert * outputs + output, mask=is_output, other=0.0)
        total += own.to(tl.float32)[None, :]
    out_at = out + pair[:, None] * outputs + output[None, :]
    tl.store(out_at, total, mask=is_pair[:, None] & is_output[None, :])


@triton.jit
def multiply_grouped_codes(
    x,  # [rows, INPUTS]
    codes,  # int8 or float8 [experts, outputs, INPUTS], or uint8 [experts, outputs, INPUTS / 2]
    scales,  # float32 [experts, outputs], or [experts, outputs, INPUTS / 32]
    zeros,  # uint8 [experts, outputs, INPUTS / 32]
    biases,  # [experts, outputs]
    out,  # [pairs, outputs]
    order, tile_experts, tile_starts, expert_ends, outputs, x_stride,  # see ``multiply_grouped``
    PAIRS_OF_ROW: tl.constexpr, INPUTS: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STEP: tl.constexpr,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr,
    DOT: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """``multiply_grouped`` with weights of 8 or 4 bits."""
    wait_for_earlier(OVERLAPS)
    tile = tl.program_id(1)
    expert = tl.load(tile_experts + tile)
    if expert < 0:
        return
    place = tl.load(tile_starts + tile) + tl.arange(0, ROWS)
    is_pair = place < tl.load(expert_ends + expert)
    pair = tl.load(order + place, mask=is_pair, other=0)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = output < outputs
    x_at = x + (pair // PAIRS_OF_ROW)[:, None] * x_stride
    first = expert.to(tl.int64) * outputs  # the expert's first output among all
    own_codes = codes + first * (INPUTS * BITS // 8)
    groups: tl.constexpr = 1 if BITS == 8 else INPUTS // 32
    own_scales = scales + first * groups
    own_zeros = zeros + first * groups if HAS_ZEROS else zeros
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for at in range(0, INPUTS, STEP):
        if BITS == 8:
            column = at + tl.arange(0, STEP)
            inside = is_pair[:, None] & (column[None, :] < INPUTS)
            b = decode_bytes(
                own_codes, own_scales, output, outputs, column, INPUTS, x.dtype.element_ty
            )
            a = tl.load(x_at + column[None, :], mask=inside, other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(b.to(DOT)), total, input_precision="ieee")
        else:
            low, high = decode_nibbles(
                own_codes, own_scales, own_zeros, output, outputs, at, INPUTS, STEP, HAS_ZEROS,
                x.dtype.element_ty,
            )  # fmt: skip
            column = at + low_columns(STEP)[None, :]
            inside = is_pair[:, None] & (column < INPUTS)
            a = tl.load(x_at + column, mask=inside, other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(low.to(DOT)), total, input_precision="ieee")
            a = tl.load(x_at + column + 16, mask=inside, other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(high.to(DOT)), total, input_precision="ieee")
    if HAS_BIAS:
        own = tl.load(biases + expert * outputs + output, mask=is_output, other=0.0)
        total += own.to(tl.float32)[None, :]
    out_at = out + pair[:, None] * outputs + output[None, :]
    tl.store(out_at, total, mask=is_pair[:, None] & is_output[None, :])
