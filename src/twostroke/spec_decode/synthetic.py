"""Drafts that are accepted at a given rate, whatever the model says: for measurements only.

The answers mean nothing: accepted drafts become their tokens. That makes the speed of speculation
measurable on checkpoints with random weights, and it is how the simulator speculates.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.step import StepPlan
from twostroke.sampling.random import derive_seed
from twostroke.spec_decode.base import FinishedPass


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """How drafts fare.

    Attributes:
        rate: Probability that a draft is accepted, given that those before it were.
        seed: Decides the draws, together with request and position.
    """

    rate: float
    seed: int = 0

    def num_accepted(self, request_seed: int, position: int, num_drafts: int) -> int:
        """How many of ``num_drafts`` drafts a request keeps at a position."""
        uniform = derive_seed(derive_seed(self.seed, request_seed + 1), position) / 2**64
        accepted, threshold = 0, self.rate
        while accepted < num_drafts and uniform < threshold:
            accepted += 1
            threshold *= self.rate
        return accepted


class SyntheticProposer:
    """Repeats the last token: one that did not end the request. A ``Proposer``."""

    reads_all_rows = False

    def update(self, plan: StepPlan) -> None:
        """Nothing is kept."""

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        return {
            request.request_id: [new_token_ids[-1]] * most
            for request, new_token_ids, most, _ in step.continuations()
        }
