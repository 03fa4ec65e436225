"""Drafts of the target's own first layers, with its head after them.

Elhoushi et al. 2024 (LayerSkip, arXiv 2404.16710). The layers share their keys and values with the
target: those of known tokens are there already, and those of drafts are computed again, to the same
values, when the target verifies them.
"""

from __future__ import annotations

from twostroke.core.step import StepPlan
from twostroke.spec_decode.base import FinishedPass
from twostroke.spec_decode.greedy import GreedyDrafter, Unfinished


class EarlyExitProposer:
    """A ``Proposer``. Keeps nothing of any request.

    Args:
        drafter: Runs the first layers, on the target's keys and values.
    """

    reads_all_rows = False

    def __init__(self, drafter: GreedyDrafter) -> None:
        self._drafter = drafter

    def update(self, plan: StepPlan) -> None:
        """The target has all that is needed."""

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        going = step.continuations()
        if not going:
            return {}
        unfinished = [
            Unfinished(
                tokens[-1:],
                request.num_tokens + len(tokens) - 1,
                step.block_table[place],
                most,
            )
            for request, tokens, most, place in going
        ]
        drafts = self._drafter.draft(unfinished)
        return {each.request.request_id: drafts[i] for i, each in enumerate(going)}
