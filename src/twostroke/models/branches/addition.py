"""The hidden state between branches, and how a branch's last product is added to it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from twostroke.distributed.ranks import Ranks
from twostroke.kernels.pass_calls import AdditionCall
from twostroke.layers.compiled.branches import norm_call
from twostroke.layers.linear import Linear
from twostroke.layers.norm import Norm


class Hidden(NamedTuple):
    """A hidden state ``x`` [tokens, hidden], to which ``update`` is still to be added, if given.

    So that a GPU does it in one launch with the norm that follows.
    """

    x: Tensor
    update: Tensor | None = None

    def sum(self) -> Tensor:
        return self.x if self.update is None else self.x + self.update

    def normed(self, norm: Norm | None) -> tuple[Tensor, Tensor]:
        """``sum()`` and its norm."""
        if norm is not None and self.update is not None:
            return norm.of_sum(self.x, self.update)
        total = self.sum()
        return total, total if norm is None else norm(total)


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

    def __call__(self, inner: Tensor, onto: Tensor) -> Hidden:
        if self._ranks is not None:
            added = self._ranks.sum(self.linear.wide(inner)).to(onto.dtype)
        elif self._is_plain and self.linear.adds(inner):
            return Hidden(self.linear(inner, residual=onto))
        else:
            added = self.linear(inner)
        if self._norm is not None:
            added = self._norm(added)
        return Hidden(onto, added if self._scale == 1.0 else added * self._scale)
