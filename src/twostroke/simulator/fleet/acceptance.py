"""Speculative decoding, as far as tokens go: how many drafts are accepted.

How long drafting takes is up to the cost model.

A step drafts ``k`` tokens for each decoding request, verifies them in one pass, and keeps the
drafts up to the first that is refused, and one token more (Leviathan et al., 2023). With each draft
accepted with probability ``a`` that gives ``(1 - a^(k+1)) / (1 - a)`` tokens a step on average.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.sampling.random import derive_seed


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts fare.

    Attributes:
        tokens: Drafts per request and step (k).
        rate: Probability that a draft is accepted, given that those before it were.
        seed: Decides the draws, together with request and position.
    """

    tokens: int
    rate: float
    seed: int = 0

    def num_accepted(self, request_seed: int, position: int) -> int:
        """How many drafts a request keeps at a position, from 0 to ``tokens``."""
        uniform = derive_seed(derive_seed(self.seed, request_seed + 1), position) / 2**64
        accepted, threshold = 0, self.rate
        while accepted < self.tokens and uniform < threshold:
            accepted += 1
            threshold *= self.rate
        return accepted
