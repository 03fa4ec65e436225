"""How a branch's last product is added to the hidden state."""

from __future__ import annotations

from torch import Tensor

from twostroke.distributed.ranks import Ranks
from twostroke.kernels.pass_calls import AdditionCall
from twostroke.layers.compiled.branches import norm_call
from twostroke.layers.linear import Linear
from twostroke.layers.norm import Norm


class Addition:
    """``onto + scale * norm(linear(inner))``.

    Args:
        norm: Applied to what is added; ``None``: it is added as it is.
        ranks: The processes whose products are summed, where each has some of the inputs.
    """

    def __init__(
        self, linear: Linear, norm: Norm | None, scale: float, ranks: Ranks | None = None
    ) -> None:
        self.linear, self._ranks = linear, ranks
        self._is_plain = norm is None and scale == 1.0
        self._norm = norm
        self._scale = scale

    def compiled(self) -> AdditionCall | None:
        """This addition for the compiled pass, or ``None`` where that cannot run it."""
        linear, norm = self.linear.kernel_call, norm_call(self._norm)
        if linear is None or norm is None or self._ranks is not None:
            return None
        return AdditionCall(linear=linear, norm=norm, scale=self._scale)

    def __call__(self, inner: Tensor, onto: Tensor) -> Tensor:
        if self._ranks is not None:
            added = self._ranks.sum(self.linear.wide(inner)).to(onto.dtype)
        elif self._is_plain:
            return self.linear(inner, residual=onto)
        else:
            added = self.linear(inner)
        if self._norm is not None:
            added = self._norm(added)
        return onto + (added if self._scale == 1.0 else added * self._scale)
