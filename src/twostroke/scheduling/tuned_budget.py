"""The largest token budget with which a step still ends within a target.

While requests decode, a step is the gap between two tokens of each of them, so a step that takes no
longer than the TPOT target keeps them all within it. What a step takes is learned from earlier ones
(``step_times.py``); the budget follows from it in closed form, so there is nothing to swing. Where
no request decodes, no gap can be too long, and the budget is the whole one.
(docs/decisions/0012-step-times-are-measured.md)
"""

from __future__ import annotations

from collections.abc import Collection

from twostroke.core.request import Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.timing.step_times import StepTimes, read_shape

# Share of the target that a step is planned to take: steps of one shape differ.
AIM = 0.95
# Prompt tokens of a step that are never taken away, lest prompts stand still.
LEAST_CHUNK = 32
# Before any step with a prompt was measured.
FIRST_CHUNK = 256
# A chunk may be this many times the largest of late: what far larger ones take is a guess.
GROWTH = 2.0
# What remains of the largest after each step with prompts.
KEPT_CHUNK = 0.9


class TunedBudget:
    """A ``StepBudget``; see the module.

    Args:
        most: The largest budget.
        target: Seconds that a step may take while requests decode.
        times: Follows the steps; this observes them for it.

    Attributes:
        tokens: The next step's budget.
    """

    def __init__(self, most: int, target: float, times: StepTimes) -> None:
        self.tokens = most
        self._most = most
        self._target = target
        self._times = times
        self._largest_chunk = FIRST_CHUNK / GROWTH

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        failed = result.failure is not None
        self._times.observe(plan, now, busy=bool(running), failed=failed)
        _, work = read_shape(plan)
        if work.tokens:
            least = FIRST_CHUNK / GROWTH
            self._largest_chunk = max(work.tokens, KEPT_CHUNK * self._largest_chunk, least)
        rows, start = 0, 0
        for request in running:
            if request.num_missing_tokens == 1:
                rows += 1 + len(request.draft_token_ids)
            elif not start:
                start = request.num_computed_tokens
        self.tokens = self.choose(rows, start)

    def choose(self, rows: int, start: int) -> int:
        """The budget of a step in which ``rows`` rows decode.

        Args:
            start: Where the prompt that goes on continues; 0 for a new one.
        """
        if not rows:
            return self._most
        chunk = float(FIRST_CHUNK)
        if self._times.knows_prompts:
            left = AIM * self._target - self._times.of_decode(rows)
            chunk = self._times.prices.most_tokens(left, start)
        chunk = min(chunk, GROWTH * self._largest_chunk)
        return min(self._most, rows + max(LEAST_CHUNK, int(chunk)))
