"""How long a step takes, by what it computes, learned from the steps that were taken.

``seconds = decode(rows) + step + token * tokens + pair * pairs``: what a step takes whose rows only
decode; and what prompts add to it, for being there, for each token, and for each pair of one with a
token that it attends to. These three prices are those of least squares over the latest steps with
prompts; relative errors count. A factor for all of it follows changes of speed faster than the
prices, which tell apart what needs many steps to be told apart.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

from twostroke.core.step import StepPlan
from twostroke.timing.mean_times import MeanTimes

# What remains of the weight of earlier steps with prompts after each new one.
KEPT = 0.95
# What prompts add may be this many times what was expected of them: more is chance.
MAX_RATIO = 2.0
# Steps with prompts before an expectation is good enough for that.
LEAST_STEPS = 5
# Share of a new gap between two steps in their mean.
GAP_WEIGHT = 0.1
# Share of a new step in the factor.
FACTOR_WEIGHT = 0.2
# A step whose time differs from the expected one by up to this share counts in full for the prices.
# The more it differs beyond that, the less it counts: the machine's speed has changed, not prices.
USUAL_ERROR = 0.1
# Steps must differ at least by this share of a sum's square, or prices cannot be told apart.
LEAST_SPREAD = 1e-3


class PromptWork(NamedTuple):
    """Prompt tokens to compute, and pairs of one of them and a token that it attends to."""

    tokens: float = 0.0
    pairs: float = 0.0

    @classmethod
    def of(cls, start: int, num_tokens: int) -> PromptWork:
        """``num_tokens`` tokens of one prompt, from position ``start`` on."""
        return cls(num_tokens, num_tokens * (start + (num_tokens + 1) / 2))

    def plus(self, other: PromptWork) -> PromptWork:
        return PromptWork(self.tokens + other.tokens, self.pairs + other.pairs)


class Prices(NamedTuple):
    """Seconds that a prompt token, a pair, and their being there add to a step; 0 at first."""

    token: float = 0.0
    pair: float = 0.0
    step: float = 0.0

    def seconds(self, work: PromptWork) -> float:
        """What prompts add to one step."""
        return self.step + self.beside_steps(work) if work.tokens else 0.0

    def beside_steps(self, work: PromptWork) -> float:
        """What prompts add to any number of steps, without the cost per step."""
        return self.token * work.tokens + self.pair * work.pairs

    def most_tokens(self, seconds: float, start: int) -> float:
        """How many tokens of a prompt, from position ``start`` on, take so long in one step.

        ``inf`` where a token costs nothing.
        """
        seconds -= self.step
        each = self.token + self.pair * start
        if seconds <= 0:
            return 0.0
        # The positive root of pair / 2 * n^2 + each * n = seconds.
        divisor = each + sqrt(each * each + 2 * self.pair * seconds)
        # All steps took the same, however many tokens they had.
        return 2 * seconds / divisor if divisor else inf

    def times(self, factor: float) -> Prices:
        return Prices(self.token * factor, self.pair * factor, self.step * factor)


class StepTimes:
    """Follows the times of steps; pure. ``observe`` is called once for each step, in order.

    Attributes:
        now: When the latest step ended, in seconds on the engine's clock.
        last_seconds: What it took, with the gap before the next.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.last_seconds = 0.0
        self._factor = 1.0
        self._fit = Prices()
        self._decode = MeanTimes()
        self._gap = 0.0
        self._was_busy = False
        self._num_steps = 0
        self._sums = _Sums()

    @property
    def knows_prompts(self) -> bool:
        """Whether a step with prompts was seen."""
        return self._num_steps > 0

    @property
    def prices(self) -> Prices:
        """What prompts add to a step just now."""
        return self._fit.times(self._factor)

    def of_decode(self, rows: int) -> float:
        """Seconds of a step in which ``rows`` rows decode; 0 before any did."""
        return self._decode.at(rows) if rows else 0.0

    def observe(self, plan: StepPlan, now: float, *, busy: bool, failed: bool = False) -> None:
        """Take in a step that ended at ``now``.

        Args:
            busy: The next step follows at once.
            failed: It computed nothing; how long it took means nothing.
        """
        began = max(plan.time, self.now)  # a GPU's is planned while the one before runs
        if self._was_busy:
            self._gap += GAP_WEIGHT * (min(began - self.now, now - began) - self._gap)
        self.now, self._was_busy = now, busy
        rows, work = read_shape(plan)
        if failed or not plan.num_tokens:
            return
        self.last_seconds = seconds = max(now - began + self._gap, 1e-9)
        if work.tokens:
            self._add_prompts(rows, work, seconds)
        else:
            self._decode.add(rows, seconds)

    def _add_prompts(self, rows: int, work: PromptWork, seconds: float) -> None:
        alone = self.of_decode(rows)
        added, trust = max(seconds - alone, 0.05 * seconds), 1.0
        if self._num_steps >= LEAST_STEPS:
            fitted = self._fit.seconds(work)
            ratio = min(added / fitted, MAX_RATIO * self._factor)
            surprise = abs(ratio / self._factor - 1)
            trust = min(1.0, USUAL_ERROR / max(surprise, 1e-9))
            self._factor += FACTOR_WEIGHT * (ratio - self._factor)
            added = ratio * fitted / self._factor
        self._num_steps += 1
        self._sums.add(work, added, trust / (added * added))
        self._fit = self._sums.fit()


class _Sums:
    """Decayed sums over steps with prompts, of which the prices are the least squares."""

    def __init__(self) -> None:
        # Of products of features (token, pair, step) by each other, and by seconds.
        self._products = [[0.0] * 3 for _ in range(3)]
        self._by_seconds = [0.0] * 3

    def add(self, work: PromptWork, seconds: float, weight: float) -> None:
        features = (work.tokens, work.pairs, 1.0)
        for row, left in enumerate(features):
            for column, right in enumerate(features):
                self._products[row][column] *= KEPT
                self._products[row][column] += weight * left * right
            self._by_seconds[row] = KEPT * self._by_seconds[row] + weight * left * seconds

    def fit(self) -> Prices:
        """The best prices of which none is below 0: first all three, then without pairs ..."""
        for kept in ((0, 1, 2), (0, 2), (0, 1), (1, 2), (0,)):
            prices = self._solve(kept)
            if prices is not None:
                return prices
        return Prices()

    def _solve(self, kept: tuple[int, ...]) -> Prices | None:
        """Solve by elimination; ``None`` if a price is negative, or the system is singular."""
        rows = [[self._products[i][j] for j in kept] + [self._by_seconds[i]] for i in kept]
        size = len(kept)
        for pivot in range(size):
            if rows[pivot][pivot] <= LEAST_SPREAD * self._products[kept[pivot]][kept[pivot]]:
                return None
            for row in range(pivot + 1, size):
                share = rows[row][pivot] / rows[pivot][pivot]
                rows[row] = [a - share * b for a, b in zip(rows[row], rows[pivot], strict=True)]
        found = [0.0] * 3
        for row in reversed(range(size)):
            rest = sum(rows[row][k] * found[kept[k]] for k in range(row + 1, size))
            found[kept[row]] = (rows[row][size] - rest) / rows[row][row]
        return None if min(found) < 0 else Prices(*found)


def read_shape(plan: StepPlan) -> tuple[int, PromptWork]:
    """Rows that decode in a step, drafts included, and what it computes of prompts."""
    rows, work = 0, PromptWork()
    for share in plan.scheduled.values():
        if share.num_tokens - len(share.draft_token_ids) == 1:
            rows += share.num_tokens
        else:
            work = work.plus(PromptWork.of(share.start, share.num_tokens))
    return rows, work
