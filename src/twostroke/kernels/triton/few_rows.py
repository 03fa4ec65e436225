"""A matrix product for few rows, bounded by the bytes of its weight."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def multiply_few(
    x,  # [rows, INPUTS]
    weight,  # [outputs, INPUTS], contiguous
    bias,  # [outputs]
    residual,  # [rows, outputs]
    out,  # [rows, outputs]
    rows,
    outputs,
    x_stride,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,  # rows of a tile
    OUTPUTS: tl.constexpr,  # outputs of a program
    STEP: tl.constexpr,  # inputs of a step
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):
    """``x @ weight.T + bias + residual``, summed in float32 and rounded once.

    A row's sums do not depend on the other rows.
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row[:, None] < rows, output[:, None] < outputs
    step = tl.arange(0, STEP)
    x_at = x + row[:, None].to(tl.int64) * x_stride + step[None, :]
    weight_at = weight + output[:, None].to(tl.int64) * INPUTS + step[None, :]
    # Weights depend on nothing: the first are on their way while the kernel before still runs.
    inside = step[None, :] < INPUTS
    b = tl.load(weight_at, mask=is_output & inside, other=0.0).to(DOT)
    wait_for_earlier(OVERLAPS)
    a = tl.load(x_at, mask=is_row & inside, other=0.0).to(DOT)
    total = tl.dot(a, tl.trans(b), input_precision="ieee")
    for at in range(STEP, INPUTS, STEP):
        inside = step[None, :] < INPUTS - at
        a = tl.load(x_at + at, mask=is_row & inside, other=0.0).to(DOT)
        b = tl.load(weight_at + at, mask=is_output & inside, other=0.0).to(DOT)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    place = row[:, None].to(tl.int64) * outputs + output[None, :]
    inside = is_row & (output[None, :] < outputs)
    if HAS_BIAS:
        own = tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)
        total += own[None, :]
    if HAS_RESIDUAL:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total, mask=inside)
