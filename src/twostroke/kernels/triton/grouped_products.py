"""Products of rows with the weight of the expert that each goes to.

Rows are in the order of their experts (Gale et al. 2023, MegaBlocks): a tile has rows of one expert
alone, so that each weight is read once for all of an expert's rows in a tile, and those of experts
without rows never.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


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
