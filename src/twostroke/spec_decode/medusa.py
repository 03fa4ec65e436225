"""Drafts of Medusa heads on the target's last hidden state (Cai et al. 2024, arXiv 2401.10774).

Head ``i`` reads the state that the latest token was drawn from, and guesses the token ``i + 1``
places after that token. All heads read the same state, so no guess sees the one before it: one
pass of the heads makes the whole chain (docs/decisions/0013-drafts-are-accepted-by-equality.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.core.step import StepPlan
from twostroke.layers.linear import Linear
from twostroke.spec_decode.base import FinishedPass

Logits = Callable[[Tensor], Tensor]
# Passes of each number of heads before the first request's. The second may be slow as well.
WARM_UPS = 3


class StackedLayer(NamedTuple):
    """The heads in one product.

    Attributes:
        weight: ``[heads, in, out]``.
        bias: ``[heads, 1, out]``.
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class LayerByHead(NamedTuple):
    """One product after the other: where each is a compiled kernel. PyTorch's threads, which
    nothing else uses between two passes, would have to wake up for each layer."""

    heads: Sequence[Linear]

    def __call__(self, x: Tensor) -> Tensor:
        return torch.stack([head(state) for head, state in zip(self.heads, x)])


# One layer of all heads, each of which maps its state ``x`` to ``x + silu(x @ weight + bias)``:
# gives the inner states of the first heads, before ``silu``, ``[heads, rows, hidden]``.
ResidualLayer = StackedLayer | LayerByHead


class MedusaHeads:
    """The heads of one target.

    Args:
        num_heads: How many there are.
        layers: One after the other, at least one.
        outputs: Scores of all tokens, ``[rows, hidden]`` to ``[rows, vocabulary]``: one for each
            head, or a single one for all of them, the target's own.
        nbytes: Bytes of all that is not the target's.
    """

    def __init__(
        self,
        num_heads: int,
        layers: Sequence[ResidualLayer],
        outputs: Sequence[Logits],
        nbytes: int,
    ) -> None:
        self._layers = layers
        self._outputs = outputs
        self.nbytes = nbytes
        self.num_heads = num_heads

    def warm_up(self, hidden: Tensor) -> None:
        """Guess a few times of any state ``[1, hidden]``: the first passes of each number of heads
        set things up, and take ten to a hundred times as long as later ones."""
        for count in range(1, self.num_heads + 1):
            for _ in range(WARM_UPS):
                self.guess(hidden, count)

    def guess(self, hidden: Tensor, count: int) -> list[list[int]]:
        """The likeliest token of each of the first ``count`` heads.

        Args:
            hidden: ``[rows, hidden]``, normed, in the precision of the heads.

        Returns:
            ``count`` tokens for each row.
        """
        x = hidden.expand(count, *hidden.shape)  # [heads, rows, hidden]
        for layer in self._layers:
            x = x + F.silu(layer(x))
        if len(self._outputs) == 1:
            [output] = self._outputs
            tokens = output(x.flatten(0, 1)).argmax(-1).view(count, -1)
        else:
            each = zip(self._outputs, x)
            tokens = torch.stack([output(state).argmax(-1) for output, state in each])
        guesses: list[list[int]] = tokens.T.tolist()
        return guesses


class MedusaProposer:
    """A ``Proposer``. Keeps nothing of any request, and writes no keys and values."""

    reads_all_rows = False

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads = heads

    def update(self, plan: StepPlan) -> None:
        """The state of the last pass is all that the heads read."""

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        going = step.continuations()
        if not going:
            return {}
        count = min(self._heads.num_heads, max(each.max_drafts for each in going))
        guesses = self._heads.guess(step.hidden[step.last_rows(going)], count)  # [requests][count]
        return {
            each.request.request_id: drafts[: each.max_drafts]
            for each, drafts in zip(going, guesses)
        }
