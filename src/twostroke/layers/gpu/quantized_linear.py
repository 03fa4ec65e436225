"""Linear layers over weights of 8 or 4 bits on a GPU."""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.calls import LinearCall
from twostroke.kernels.library import GROUP
from twostroke.kernels.triton.quantized_products import (
    add_splits,
    decode_quantized,
    multiply_quantized,
)
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.stored_weights import StoredWeight

QUANTIZED = ("int8", "int4", "uint4")  # formats of a ``StoredWeight``
# More rows are worth it to decode the weight, and leave the product to cuBLAS.
MOST_ROWS = 64
# Rows of a tile at any number of rows: a row's sums are the same in any batch.
_ROWS = 16
_OUTPUTS, _STEP, _STAGES = 32, 256, 4
# Inputs are split until there are so many programs, at least so many inputs each. Constants, of
# the weight's shape alone: how a sum is split decides how it is rounded.
_PROGRAMS, _MAX_SPLITS, _MIN_SPLIT = 256, 8, 512
_DECODED_OUTPUTS = 16


class QuantizedLinear:
    """The layer, see ``Linear``; its weight becomes no matrix but for many rows.

    Each weight is ``StoredWeight.values`` rounded to the type of the rows, whatever their number.

    Args:
        weight: int8, int4 or uint4.
        bias: ``[outputs]``, where the weight is.
    """

    is_exact = False
    kernel_call: LinearCall | None = None

    def __init__(self, weight: StoredWeight, bias: Tensor | None, operators: GpuOperators) -> None:
        self.matrix = CodeMatrix.of(weight)
        self.bias, self._operators = bias, operators

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if len(x) <= MOST_ROWS:
            return self._multiply(x, residual, x.dtype)
        product = F.linear(x, self.matrix.decoded(x.dtype, self._operators), self.bias)
        return product if residual is None else residual + product

    def adds(self, x: Tensor) -> bool:
        return len(x) <= MOST_ROWS

    def wide(self, x: Tensor) -> Tensor:
        return self._multiply(x, None, torch.float32) if len(x) <= MOST_ROWS else self(x).float()

    def weight_rows(self, indices: Tensor) -> Tensor:
        return self.matrix.rows(indices).decoded(torch.float32, self._operators)

    @property
    def inputs(self) -> int:
        return self.matrix.inputs

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.matrix if part is not None)

    def _multiply(self, x: Tensor, residual: Tensor | None, dtype: torch.dtype) -> Tensor:
        own, operators = self.matrix, self._operators
        rows, outputs = len(x), len(own.codes)
        out = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        if not rows:
            return out
        x = x if x.stride(1) == 1 else x.contiguous()
        if residual is not None:
            residual = residual.contiguous()
        splits, split = own.splits
        parts = torch.empty(splits, rows, outputs, device=x.device)
        # Numbers of 32 bits, which are there to be compared with, take half of the steps.
        step = _STEP // (x.itemsize // 2)
        multiply_quantized[triton.cdiv(rows, _ROWS), triton.cdiv(outputs, _OUTPUTS), splits](
            x, *own, parts, rows, outputs, x.stride(0), own.inputs, split, _ROWS, _OUTPUTS, step,
            own.bits, own.zeros is not None, operators.product_type(x.dtype),
            operators.products_overlap, num_warps=4, num_stages=_STAGES,
            launch_pdl=operators.products_overlap,
        )  # fmt: skip
        tile = min(1024, triton.next_power_of_2(outputs))
        add_splits[rows, triton.cdiv(outputs, tile)](
            parts, self.bias, residual, out, rows, outputs, splits, tile, self.bias is not None,
            residual is not None, operators.overlaps, num_warps=4, launch_pdl=operators.overlaps,
        )  # fmt: skip
        return out


class CodeMatrix(NamedTuple):
    """A weight as the kernels read it, see ``kernels.triton.quantized_products``."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    @classmethod
    def of(cls, weight: StoredWeight) -> Self:
        assert weight.factors is not None and weight.format in QUANTIZED
        codes, zeros = weight.codes, weight.minimums
        if weight.format != "int8":
            above_zero = codes + 8 if weight.format == "int4" else codes
            halves = above_zero.to(torch.uint8).view(len(codes), -1, 2, GROUP // 2)
            codes = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1)
        zeros = None if zeros is None else zeros.contiguous()
        return cls(codes.contiguous(), weight.factors.float().contiguous(), zeros)

    @property
    def bits(self) -> int:
        return 4 if self.codes.dtype is torch.uint8 else 8

    @property
    def inputs(self) -> int:
        return self.codes.shape[1] * 8 // self.bits

    @property
    def splits(self) -> tuple[int, int]:
        """Among how many programs its inputs are split, and how many each has."""
        programs, longest = triton.cdiv(len(self.codes), _OUTPUTS), self.inputs // _MIN_SPLIT
        wanted = min(triton.cdiv(_PROGRAMS, programs), _MAX_SPLITS, max(longest, 1))
        split = triton.cdiv(triton.cdiv(self.inputs, wanted), _STEP) * _STEP
        return triton.cdiv(self.inputs, split), split

    def rows(self, indices: Tensor) -> Self:
        zeros = None if self.zeros is None else self.zeros[indices]
        return self._replace(codes=self.codes[indices], scales=self.scales[indices], zeros=zeros)

    def decoded(self, dtype: torch.dtype, operators: GpuOperators) -> Tensor:
        """``[outputs, inputs]``."""
        outputs = len(self.codes)
        out = torch.empty(outputs, self.inputs, dtype=dtype, device=self.codes.device)
        if outputs:
            grid = triton.cdiv(outputs, _DECODED_OUTPUTS), triton.cdiv(self.inputs, _STEP)
            decode_quantized[grid](
                *self, out, outputs, self.inputs, _DECODED_OUTPUTS, _STEP, self.bits,
                self.zeros is not None, operators.overlaps, num_warps=4,
                launch_pdl=operators.overlaps,
            )  # fmt: skip
        return out
