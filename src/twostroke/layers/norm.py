"""Root mean square normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in float32 and returned in x's dtype.

    Args:
        weight: Its last dimension is normalized over; leading ones broadcast (one row per attention head, say).
    """

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        # Rounded before the weight is applied, as transformers does: the reference for parity.
        return self.weight * wide.to(x.dtype)
