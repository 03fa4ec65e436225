"""Linear layers whose weights and rows are numbers of 8 bits (e4m3) on a GPU.

Weights have a scale for each output, rows a scale each that is found as they come: what a row
gives depends on no other row. The tensor cores multiply such numbers twice as fast as bfloat16.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from twostroke.kernels.calls import LinearCall
from twostroke.kernels.triton.scaled_rows import round_rows
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.layers.gpu.quantized_linear import CodeMatrix

CODES = torch.float8_e4m3fn
_LARGEST = torch.finfo(CODES).max
MULTIPLE = 16  # of inputs and outputs, for ``scaled_mm``
_MAX_INPUTS = 2**16  # that a program rounds at once


class Fp8Linear:
    """The layer, see ``Linear``.

    Args:
        weight: ``[outputs, inputs]``, whole multiples of 16; it is rounded.
        bias: ``[outputs]``, where the weight is.
    """

    is_exact = False
    kernel_call: LinearCall | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None, operators: GpuOperators) -> None:
        self.matrix = CodeMatrix(*rounded(weight), None)
        self.bias, self._operators = bias, operators

    @staticmethod
    def can_take(weight: Tensor) -> bool:
        outputs, inputs = weight.shape
        return outputs % MULTIPLE == 0 and inputs % MULTIPLE == 0 and inputs <= _MAX_INPUTS

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        codes, scales, _ = self.matrix
        product = scaled_product(*self.rounded_rows(x), codes, scales).to(x.dtype)
        if self.bias is not None:
            product = product + self.bias
        return product if residual is None else residual + product

    def adds(self, x: Tensor) -> bool:
        return False

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    def weight_rows(self, indices: Tensor) -> Tensor:
        codes = self.matrix.codes.view(torch.uint8)[indices].view(CODES)
        return codes.float() * self.matrix.scales[indices, None]

    def rounded_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of ``[rows, inputs]``, and float32 scales ``[rows]``."""
        rows, inputs = x.shape
        x = x if x.stride(1) == 1 else x.contiguous()
        codes = torch.empty(rows, inputs, dtype=CODES, device=x.device)
        scales = torch.empty(rows, device=x.device)
        if rows:
            tile = triton.next_power_of_2(inputs)
            round_rows[rows,](
                x, codes, scales, x.stride(0), inputs, tile, self._operators.overlaps,
                num_warps=min(16, max(1, tile // 512)), launch_pdl=self._operators.overlaps,
            )  # fmt: skip
        return codes, scales

    @property
    def inputs(self) -> int:
        return self.matrix.inputs

    @property
    def nbytes(self) -> int:
        return self.matrix.codes.nbytes + self.matrix.scales.nbytes


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of ``[outputs, inputs]``, and float32 scales ``[outputs]``."""
    wide = weight.float()
    scales = wide.abs().amax(1).clamp(min=1e-30) / _LARGEST
    return (wide / scales[:, None]).clamp(-_LARGEST, _LARGEST).to(CODES), scales


def scaled_product(codes: Tensor, scales: Tensor, weight: Tensor, weight_scales: Tensor) -> Tensor:
    """``codes @ weight.T`` times both scales, bfloat16 ``[rows, outputs]``.

    On a CPU, where this is there to be tested, in float32 throughout.
    """
    if codes.device.type == "cpu" or not len(codes):
        product = codes.float() @ weight.float().T
        return (product * scales[:, None] * weight_scales).bfloat16()
    return torch._scaled_mm(
        codes, weight.T, scales[:, None], weight_scales[None], out_dtype=torch.bfloat16
    )
