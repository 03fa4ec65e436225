"""Root mean square normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.kernels.library import Library


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension.

    Computed in float32 and returned in x's dtype.

    Args:
        weight: Its last dimension is normalized over; leading ones broadcast (one row per attention
            head, say).
        library: The compiled kernels, if they are to be used: bfloat16 on a CPU, a weight of one
            dimension.
    """

    __slots__ = ("_library", "eps", "weight")

    def __init__(self, weight: Tensor, eps: float, library: Library | None = None) -> None:
        self.weight = weight
        self.eps = eps
        self._library = library if weight.ndim == 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``, contiguous."""
        if self._library is not None:
            out, size = torch.empty_like(x), x.shape[-1]
            rows = x.numel() // size
            self._library.rms_norm(
                x.data_ptr(), self.weight.data_ptr(), out.data_ptr(), rows, size, self.eps
            )
            return out
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        # Rounded before the weight is applied, as transformers does: the reference for parity.
        return self.weight * wide.to(x.dtype)
