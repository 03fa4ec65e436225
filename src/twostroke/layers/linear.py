"""Linear layers over weights that already exist. One class, so that a faster kernel has one place to go."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


class Linear:
    """``x @ weight.T + bias``. No ``nn.Module``: nothing is trained, and its call overhead shows in small models."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        return F.linear(x, self.weight, self.bias)
