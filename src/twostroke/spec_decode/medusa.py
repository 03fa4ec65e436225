"""Drafts of Medusa heads on the target's last hidden state (Cai et al. 2024, arXiv 2401.10774).

Head ``i`` reads the state that the latest token was drawn from, and guesses the token ``i + 1``
places behind that token. All heads read the same state, so no guess sees the one before it: one
pass of the heads makes the whole chain (docs/decisions/0083-medusa-drafts-a-chain.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from twostroke.core.step import StepPlan
from twostroke.spec_decode.base import FinishedPass

Logits = Callable[[Tensor], Tensor]


class ResidualLayer(NamedTuple):
    """One layer of all heads: each maps its state ``x`` to ``x + silu(x @ weight + bias)``.

    Attributes:
        weight: ``[heads, in, out]``.
        bias: ``[heads, 1, out]``.
    """

    weight: Tensor
    bias: Tensor


class MedusaHeads:
    """The heads of one target.

    Args:
        layers: One after the other, at least one.
        outputs: Scores of all tokens, ``[rows, hidden]`` to ``[rows, vocabulary]``: one for each
            head, or a single one for all of them, the target's own.
        nbytes: Bytes of all that is not the target's.
    """

    def __init__(
        self, layers: Sequence[ResidualLayer], outputs: Sequence[Logits], nbytes: int
    ) -> None:
        self._layers = layers
        self._outputs = outputs
        self.nbytes = nbytes
        self.num_heads = len(layers[0].weight)

    def guess(self, hidden: Tensor, count: int) -> list[list[int]]:
        """The likeliest token of each of the first ``count`` heads.

        Args:
            hidden: ``[rows, hidden]``, normed, in the precision of the heads.

        Returns:
            ``count`` tokens for each row.
        """
        x = hidden.expand(count, *hidden.shape)  # [heads, rows, hidden]
        for weight, bias in self._layers:
            x = x + F.silu(torch.baddbmm(bias[:count], x, weight[:count]))
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
