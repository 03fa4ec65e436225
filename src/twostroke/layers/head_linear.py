"""Linear layers of attention's heads, each head's own."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.kernels.calls import LinearCall
from twostroke.kernels.library import FORMATS, LANES, Library
from twostroke.layers.packing import can_pack, pack


class HeadLinear:
    """``x @ weight.T`` for each head.

    Args:
        weights: ``[heads, outputs, inputs]``; in another form where the kernels compute.
        library: The compiled kernels: bfloat16 on a CPU.

    Attributes:
        kernel_calls: The kernel's arguments for each head, valid as long as this lives; ``None``
            if PyTorch computes.
    """

    def __init__(self, weights: Tensor, library: Library | None) -> None:
        self._weights, self._library = weights, library
        self._outputs = weights.shape[1]
        self.kernel_calls: ctypes.Array[LinearCall] | None = None
        if library is not None and can_pack(weights[0], "bfloat16"):
            self._weights, self.kernel_calls = _packed(weights)

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[tokens, heads, inputs]`` to ``[tokens, heads, outputs]``."""
        calls, library = self.kernel_calls, self._library
        if calls is None or library is None:
            return torch.einsum("thi,hoi->tho", x, self._weights)
        out = torch.empty(*x.shape[:2], self._outputs, dtype=x.dtype)
        rows = x.data_ptr(), x.stride(0), x.stride(1), len(x)
        library.part_linears(calls, len(calls), *rows, out.data_ptr(), *out.stride()[:2])
        return out


def _packed(weights: Tensor) -> tuple[Tensor, ctypes.Array[LinearCall]]:
    """All heads' weights, one after the other, and each one's call."""
    heads, outputs, inputs = weights.shape
    padded = F.pad(weights, (0, 0, 0, -outputs % LANES))
    data = pack(padded.reshape(-1, inputs), "bfloat16").data
    step = padded[0].nbytes
    calls = (
        LinearCall(
            weight=data.data_ptr() + head * step,
            inputs=inputs,
            outputs=outputs,
            format=FORMATS["bfloat16"],
        )
        for head in range(heads)
    )
    return data, (LinearCall * heads)(*calls)
