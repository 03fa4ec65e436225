"""Linear layers over weights in MXFP4 (OCP Microscaling Formats 1.0), kept as they are stored.

A weight has four bits: a sign, two of an exponent, one of a fraction. 32 of them in a row share a
scale, a power of two in a byte.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.calls import LinearCall

BLOCK = 32  # weights that share a scale
_BIAS = 127  # of the scales' exponents
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = (*_MAGNITUDES, *(-value for value in _MAGNITUDES))


def decode_mxfp4(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights, exact in each ``dtype``.

    Args:
        blocks: uint8 ``[..., groups, 16]``, of two weights each; the low bits are the first.
        scales: uint8 ``[..., groups]``.

    Returns:
        ``[..., groups * 32]``.
    """
    values = torch.tensor(_VALUES, dtype=dtype, device=blocks.device)
    pairs = torch.cartesian_prod(values, values).flip(1)  # [256, 2] by byte
    weights = F.embedding(blocks.int(), pairs).flatten(-2)  # [..., groups, 32]
    return torch.ldexp(weights, scales.int().unsqueeze(-1) - _BIAS).to(dtype).flatten(-2)


class Mxfp4Linear:
    """``x @ weight.T + bias``, the weight decoded anew in each product, see ``Linear``.

    Args:
        blocks: uint8 ``[out, in / 32, 16]``, see ``decode_mxfp4``; ``scales`` ``[out, in / 32]``.
    """

    __slots__ = ("_bias", "_blocks", "_scales")

    is_exact = True
    kernel_call: LinearCall | None = None

    def __init__(self, blocks: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self._blocks, self._scales, self._bias = blocks, scales, bias

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out = F.linear(x, decode_mxfp4(self._blocks, self._scales, x.dtype), self._bias)
        return out if residual is None else residual + out

    def adds(self, x: Tensor) -> bool:
        return False

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    def weight_rows(self, indices: Tensor) -> Tensor:
        return decode_mxfp4(self._blocks[indices], self._scales[indices], torch.float32)

    @property
    def inputs(self) -> int:
        return 32 * self._scales.shape[1]

    @property
    def nbytes(self) -> int:
        return self._blocks.nbytes + self._scales.nbytes
