"""Launches the small kernels: norms, rotation, activations, products of few rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from twostroke.kernels.triton.activations import gated_mul
from twostroke.kernels.triton.few_rows import multiply_few
from twostroke.kernels.triton.norms import add_and_normalize, normalize
from twostroke.kernels.triton.rotary import rotate

# A product of up to so many rows is bounded by the bytes of its weight.
MAX_FEW_ROWS = 16
TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
_ELEMENTS_OF_A_PROGRAM = 1024
# Outputs of a program, inputs of a step, and steps in flight, by ``benchmarks/gpu/products.py``.
_TILE, _WIDE_TILE, _MANY_OUTPUTS = (32, 256, 4), (64, 128, 5), 16384


class GpuOperators:
    """All of them keep what PyTorch's path computes, see ``kernels.triton``.

    Args:
        is_interpreting: Triton interprets them. It holds bfloat16 as integers, and a product of
            those would be wrong; so products are in float32 there.
        has_fp8: Whether the GPU has numbers of 8 bits (e4m3).
        overlaps: A kernel may start while the one before it runs, see ``kernels.triton.overlap``.
    """

    def __init__(
        self, *, is_interpreting: bool = False, overlaps: bool = False, has_fp8: bool = True
    ) -> None:
        self._is_interpreting = is_interpreting
        self.overlaps, self.has_fp8 = overlaps, has_fp8
        # Not these: where blocks of the next product start early, they share few processors, which
        # then last the longest (measured, ``benchmarks/gpu/products.py``).
        self.products_overlap = False

    def product_type(self, dtype: torch.dtype) -> tl.dtype:
        """The type in which numbers of ``dtype`` are multiplied."""
        return tl.float32 if self._is_interpreting else TYPES[dtype]

    def normalize(
        self, x: Tensor, weight: Tensor, eps: float, *, centered: bool = False, rounded: bool
    ) -> Tensor:
        """Normalize ``[..., size]``; row after row takes the next row of ``weight``."""
        size = x.shape[-1]
        rows = 1 if x.dim() == 2 else x.shape[-2]
        x = x if x.dim() in (2, 3) and x.stride(-1) == 1 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.dim() > 3:
            x = x.view(-1, rows, size)
        if count := x.numel() // size:
            tile = triton.next_power_of_2(size)
            normalize[count,](
                x, weight, out, x.stride(0), 0 if x.dim() == 2 else x.stride(1), rows,
                weight.numel() // size, eps, size, tile, centered, rounded,
                self.overlaps, num_warps=_warps_for(tile), launch_pdl=self.overlaps,
            )  # fmt: skip
        return out

    def add_and_normalize(
        self,
        residual: Tensor,
        update: Tensor,
        weight: Tensor,
        eps: float,
        *,
        centered: bool = False,
        rounded: bool,
    ) -> tuple[Tensor, Tensor]:
        """The sum of two ``[tokens, size]``, and ``normalize`` of it, in one launch."""
        tokens, size = residual.shape
        residual, update = residual.contiguous(), update.contiguous()
        total, out = torch.empty_like(residual), torch.empty_like(residual)
        if tokens:
            tile = triton.next_power_of_2(size)
            add_and_normalize[tokens,](
                residual, update, weight, total, out, eps, size, tile, centered, rounded,
                self.overlaps, num_warps=_warps_for(tile), launch_pdl=self.overlaps,
            )  # fmt: skip
        return total, out

    def rotate(self, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate heads ``[tokens, heads, head_dim]`` in place."""
        tokens, heads, width = x.shape
        if tokens:
            head_tile, half_tile = map(triton.next_power_of_2, (heads, width // 2))
            rotate[tokens,](
                x, positions, cos, sin, x.stride(0), x.stride(1), heads, width // 2, head_tile,
                half_tile, self.overlaps, num_warps=_warps_for(head_tile * half_tile),
                launch_pdl=self.overlaps,
            )  # fmt: skip
        return x

    def gated_mul(self, gate_up: Tensor, kind: int) -> Tensor:
        """``activation(gate) * up`` of ``[rows, 2 * size]``."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
        if rows:
            tile = min(_ELEMENTS_OF_A_PROGRAM, triton.next_power_of_2(size))
            gated_mul[rows, triton.cdiv(size, tile)](
                gate_up, out, size, gate_up.stride(0), kind, tile, self.overlaps,
                launch_pdl=self.overlaps,
            )  # fmt: skip
        return out

    def are_few(self, x: Tensor) -> bool:
        """Whether ``multiply_few`` takes such rows."""
        return x.dim() == 2 and x.shape[0] <= MAX_FEW_ROWS and x.stride(1) == 1

    def multiply_few(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None
    ) -> Tensor:
        """``x @ weight.T + bias + residual`` of ``[rows, inputs]``, at most ``MAX_FEW_ROWS``."""
        rows, inputs = x.shape
        outputs = len(weight)
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
        if residual is not None:
            residual = residual.contiguous()
        own, step, stages = _WIDE_TILE if outputs >= _MANY_OUTPUTS else _TILE
        # Numbers of 32 bits, which are there to be compared with, take half of the steps.
        step = min(step // (x.itemsize // 2), max(16, triton.next_power_of_2(inputs)))
        multiply_few[triton.cdiv(outputs, own), triton.cdiv(rows, MAX_FEW_ROWS)](
            x, weight, bias, residual, out, rows, outputs, x.stride(0), inputs, MAX_FEW_ROWS, own,
            step, bias is not None, residual is not None, self.product_type(x.dtype),
            self.products_overlap, num_warps=4, num_stages=stages,
            launch_pdl=self.products_overlap,
        )  # fmt: skip
        return out


def _warps_for(elements: int) -> int:
    """Warps of a program over so many elements: about 16 a thread."""
    return int(min(16, max(1, triton.next_power_of_2(elements // 512))))
