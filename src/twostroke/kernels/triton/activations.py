"""Gated activations (Shazeer 2020), see ``layers.activation``."""

from __future__ import annotations

import triton
import triton.language as tl

from twostroke.kernels.triton.overlap import wait_for_earlier

SILU, GELU, GELU_TANH = range(3)  # as ``KERNEL_ACTIVATIONS`` numbers them


@triton.jit
def gated_mul(
    gate_up,  # [rows, 2 * size], gates first
    out,  # [rows, size]
    size,
    row_stride,
    KIND: tl.constexpr,
    TILE: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """``activation(gate) * up``."""
    wait_for_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < size
    gate = tl.load(gate_up + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + size + column, mask=inside, other=0.0).to(tl.float32)
    if KIND == 0:
        active = gate * tl.sigmoid(gate)
    elif KIND == 1:
        active = 0.5 * gate * (1 + tl.math.erf(gate * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2 * inner)  # (1 + tanh x) / 2
    active = active.to(out.dtype.element_ty).to(tl.float32)  # rounded as PyTorch's is
    tl.store(out + row * size + column, active * up, mask=inside)
