"""How a branch's last product is added to the hidden state."""

from __future__ import annotations

from torch import Tensor

from twostroke.layers.linear import Linear
from twostroke.layers.norm import Norm


class Addition:
    """``onto + scale * norm(linear(inner))``.

    Args:
        norm: Of what is added; ``None``: it is added as it is.

    Attributes:
        is_plain: Whether nothing but the product is added.
    """

    def __init__(self, linear: Linear, norm: Norm | None, scale: float) -> None:
        self.linear = linear
        self.is_plain = norm is None and scale == 1.0
        self._norm = norm
        self._scale = scale

    def __call__(self, inner: Tensor, onto: Tensor) -> Tensor:
        if self.is_plain:
            return self.linear(inner, residual=onto)
        added = self.linear(inner)
        if self._norm is not None:
            added = self._norm(added)
        return onto + (added if self._scale == 1.0 else added * self._scale)
