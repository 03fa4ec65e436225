"""Speculative decoding, as far as time and tokens go: how many drafts are accepted, and what drafting costs.

A step drafts ``k`` tokens for each decoding request, verifies them in one pass over ``k + 1`` positions and keeps the
drafts up to the first that is refused, and one token more (Leviathan et al., 2023). With each draft accepted with
probability ``a`` that gives ``(1 - a^(k+1)) / (1 - a)`` tokens a step on average.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.sampling.random import derive_seed
from twostroke.simulator.cost_model import CostModel
from twostroke.simulator.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts fare.

    Attributes:
        tokens: Drafts per request and step (k).
        acceptance: Probability that a draft is accepted, given that those before it were.
        draft: What a step of the draft model costs; ``None``: drafts are free (n-grams of the prompt).
        seed: Decides the draws, together with request and position.
    """

    tokens: int
    acceptance: float
    draft: CostModel | None = None
    seed: int = 0

    def num_accepted(self, sequence_number: int, position: int) -> int:
        """How many drafts a request keeps at a position, from 0 to ``tokens``."""
        uniform = derive_seed(derive_seed(self.seed, sequence_number + 1), position) / 2**64
        accepted, threshold = 0, self.acceptance
        while accepted < self.tokens and uniform < threshold:
            accepted += 1
            threshold *= self.acceptance
        return accepted

    def verification(self, shape: StepShape) -> StepShape:
        """The pass of the target model: ``k + 1`` positions of each decoding request, its cache read once."""
        count, extra = shape.decode_requests, shape.decode_requests * self.tokens
        return StepShape(count + extra, shape.decode_context + extra, shape.prefill, shape.sampled + extra)

    def draft_seconds(self, shape: StepShape) -> float:
        """Time of ``k`` steps of the draft model. It reads prompts along with the target in the first of them."""
        if self.draft is None:
            return 0.0
        first = self.draft.step(shape).seconds
        if not shape.decode_requests:
            return first
        decode = StepShape(shape.decode_requests, shape.decode_context, (), shape.decode_requests)
        return first + (self.tokens - 1) * self.draft.step(decode).seconds
