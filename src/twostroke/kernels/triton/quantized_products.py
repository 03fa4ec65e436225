"""Products with weights of 8 or 4 bits, which are decoded where they are multiplied.

A weight is ``(code - zero) * scale``, rounded to the type of the rows that it is multiplied with:
the number that a decoded checkpoint has. 8 bits, of an integer or a float: codes
``[outputs, INPUTS]``, one scale per output, no zero. int4: 32 inputs of an output share a scale,
and maybe a zero point (else it is 8). Byte ``l`` of their 16 holds input ``l`` in its low half and
input ``16 + l`` in its high half, so that a step is two products, each with every other 16 inputs
of the rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier


@triton.jit
def multiply_quantized(
    x,  # [rows, INPUTS]
    codes,  # int8 [outputs, INPUTS], or uint8 [outputs, INPUTS / 2]
    scales,  # float32 [outputs], or [outputs, INPUTS / 32]
    zeros,  # uint8 [outputs, INPUTS / 32]
    parts,  # float32 [splits, rows, outputs]
    rows,
    outputs,
    x_stride,
    INPUTS: tl.constexpr,
    SPLIT: tl.constexpr,  # inputs of a split, a multiple of STEP
    ROWS: tl.constexpr,  # rows of a tile
    OUTPUTS: tl.constexpr,  # outputs of a program
    STEP: tl.constexpr,  # inputs of a step
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    DOT: tl.constexpr,  # the type in which products are computed
    OVERLAPS: tl.constexpr,
):
    """Sums over the inputs of each split; a row's sums do not depend on the other rows."""
    # Tiles of rows come one after the other: all but the first find the weight in the cache.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.program_id(2) * SPLIT
    x_at = x + row[:, None].to(tl.int64) * x_stride
    is_row = row[:, None] < rows
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    wait_for_earlier(OVERLAPS)
    for at in range(0, SPLIT, STEP):
        start = first + at
        if BITS == 8:
            column = start + tl.arange(0, STEP)
            b = decode_bytes(codes, scales, output, outputs, column, INPUTS, x.dtype.element_ty)
            a = tl.load(x_at + column[None, :], mask=is_row & (column[None, :] < INPUTS), other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(b.to(DOT)), total, input_precision="ieee")
        else:
            low, high = decode_nibbles(
                codes, scales, zeros, output, outputs, start, INPUTS, STEP, HAS_ZEROS,
                x.dtype.element_ty,
            )  # fmt: skip
            column = start + low_columns(STEP)[None, :]
            a = tl.load(x_at + column, mask=is_row & (column < INPUTS), other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(low.to(DOT)), total, input_precision="ieee")
            a = tl.load(x_at + column + 16, mask=is_row & (column < INPUTS), other=0.0)
            total = tl.dot(a.to(DOT), tl.trans(high.to(DOT)), total, input_precision="ieee")
    place = (tl.program_id(2).to(tl.int64) * rows + row[:, None]) * outputs + output[None, :]
    tl.store(parts + place, total, mask=is_row & (output[None, :] < outputs))


@triton.jit
def add_splits(
    parts,  # float32 [SPLITS, rows, outputs]
    bias,  # [outputs]
    residual,  # [rows, outputs]
    out,  # [rows, outputs]
    rows,
    outputs,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,  # outputs of a program
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Sum the splits in their order, then bias and residual; rounded once."""
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside, place = output < outputs, row * outputs + output
    total = tl.load(parts + place, mask=inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * rows * outputs + place, mask=inside, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        total += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total, mask=inside)


@triton.jit
def decode_quantized(
    codes,  # see ``multiply_quantized``
    scales,
    zeros,
    out,  # [outputs, INPUTS]
    outputs,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,  # outputs of a program
    STEP: tl.constexpr,  # inputs of a program
    BITS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """Write the weights that ``multiply_quantized`` multiplies with."""
    wait_for_earlier(OVERLAPS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    start = tl.program_id(1) * STEP
    own = out + output[:, None].to(tl.int64) * INPUTS
    is_output = output[:, None] < outputs
    if BITS == 8:
        column = start + tl.arange(0, STEP)
        b = decode_bytes(codes, scales, output, outputs, column, INPUTS, out.dtype.element_ty)
        tl.store(own + column[None, :], b, mask=is_output & (column[None, :] < INPUTS))
    else:
        low, high = decode_nibbles(
            codes, scales, zeros, output, outputs, start, INPUTS, STEP, HAS_ZEROS,
            out.dtype.element_ty,
        )  # fmt: skip
        column = start + low_columns(STEP)[None, :]
        inside = is_output & (column < INPUTS)
        tl.store(own + column, low, mask=inside)
        tl.store(own + column + 16, high, mask=inside)


@triton.jit
def decode_bytes(codes, scales, output, outputs, column, INPUTS: tl.constexpr, TYPE: tl.constexpr):
    """Weights ``[OUTPUTS, STEP]`` of codes of 8 bits."""
    inside = (output[:, None] < outputs) & (column[None, :] < INPUTS)
    code = tl.load(
        codes + output[:, None].to(tl.int64) * INPUTS + column[None, :], mask=inside, other=0.0
    )
    scale = tl.load(scales + output, mask=output < outputs, other=0.0)
    return (code.to(tl.float32) * scale[:, None]).to(TYPE)


@triton.jit
def decode_nibbles(
    codes, scales, zeros, output, outputs, start, INPUTS: tl.constexpr, STEP: tl.constexpr,
    HAS_ZEROS: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Weights ``[OUTPUTS, STEP / 2]`` of int4: of the inputs in low halves, and in high ones."""
    OUTPUTS: tl.constexpr = output.shape[0]
    GROUPS: tl.constexpr = STEP // 32
    is_output = output[:, None] < outputs
    place = start // 2 + tl.arange(0, STEP // 2)[None, :]
    at = output[:, None].to(tl.int64) * (INPUTS // 2) + place
    code = tl.load(codes + at, mask=is_output & (place < INPUTS // 2), other=0)
    group = start // 32 + tl.arange(0, GROUPS)[None, :]
    at = output[:, None].to(tl.int64) * (INPUTS // 32) + group
    inside = is_output & (group < INPUTS // 32)
    scale = _by_input(tl.load(scales + at, mask=inside, other=0.0), OUTPUTS, GROUPS)
    low, high = (code & 15).to(tl.float32), (code >> 4).to(tl.float32)
    if HAS_ZEROS:
        zero = tl.load(zeros + at, mask=inside, other=0).to(tl.float32)
        zero = _by_input(zero, OUTPUTS, GROUPS)
    else:
        zero = 8.0
    return ((low - zero) * scale).to(TYPE), ((high - zero) * scale).to(TYPE)


@triton.jit
def _by_input(values, OUTPUTS: tl.constexpr, GROUPS: tl.constexpr):
    """``[OUTPUTS, GROUPS]``, each 16 times."""
    wide = tl.broadcast_to(values[:, :, None], (OUTPUTS, GROUPS, 16))
    return tl.reshape(wide, (OUTPUTS, GROUPS * 16))


@triton.jit
def low_columns(STEP: tl.constexpr):
    """The inputs of a step's low halves, from its first one on."""
    place = tl.arange(0, STEP // 2)
    return place // 16 * 32 + place % 16
