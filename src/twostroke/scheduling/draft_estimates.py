"""What drafts are expected to give and to cost: estimates from steps, without any decision.

A pass of so many rows takes ``t(rows)``, drafting takes ``d(k)``; a draft's position is accepted at
a rate, of one request and of all. So ``k`` drafts give ``E(a, k) / (t(rows) + d(k))`` tokens a
second (docs/decisions/0064-depth-from-measured-steps.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twostroke.scheduling.recent_times import KNOWN_FROM, RecentTimes
from twostroke.scheduling.trial_budget import SHARE

# Steps until the time of drafts is doubted that cannot pay by it; after each measurement that
# confirms it twice as many, up to where measuring costs its share of the time.
DOUBTED_AFTER = 32
# Drafting is charged so many times what it mostly takes: what took longer was held up by chance.
MOST_CHARGED = 2.0


@dataclass(slots=True)
class Acceptance:
    """How often drafts were accepted, by position in the draft, the latest counting most."""

    kept: float
    tried: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, num_drafts: int, num_accepted: int) -> None:
        """Positions behind the first rejected one were not tried."""
        while len(self.tried) < num_drafts:
            self.tried.append(0.0)
            self.accepted.append(0.0)
        for position in range(min(num_drafts, num_accepted + 1)):
            self.tried[position] = self.tried[position] * self.kept + 1.0
            self.accepted[position] *= self.kept
            if position < num_accepted:
                self.accepted[position] += 1.0

    def rates(self, prior: list[float], weight: float) -> list[float]:
        """An estimate for each position of ``prior``, which counts as ``weight`` tries."""
        rates = []
        for position, expected in enumerate(prior):
            tried = accepted = 0.0
            if position < len(self.tried):
                tried, accepted = self.tried[position], self.accepted[position]
            rates.append((accepted + weight * expected) / (tried + weight))
        return rates

    def estimates(self, count: int, first_guess: float, weight: float) -> list[float]:
        """An estimate for each of ``count`` positions; the one before it is expected of each."""
        rates, expected = list[float](), first_guess
        for position in range(count):
            if position < len(self.tried):
                weighted = self.accepted[position] + weight * expected
                expected = weighted / (self.tried[position] + weight)
            rates.append(expected)
        return rates


class DraftTimes:
    """How long passes and drafting take. Unknown sizes cost what near ones do, so that they are
    tried.

    Args:
        at_once: Whether more drafts take no longer; else each takes as long as the first.

    Attributes:
        drafted_at: The latest step that made drafts.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self._passes = RecentTimes()
        self._drafting = RecentTimes(counts_from=KNOWN_FROM)
        self.drafted_at = 0
        self._num_doubts, self._doubted_at = 0, -1

    @property
    def largest_pass(self) -> int:
        """Rows of the largest that is known; 0 before the first."""
        return self._passes.largest

    def add_pass(self, rows: int, seconds: float, step: int) -> None:
        self._passes.add(rows, seconds, step)

    def add_drafting(self, depth: int, seconds: float, step: int) -> None:
        self._drafting.add(depth, seconds, step)

    def of_pass(self, rows: int) -> float:
        """Seconds of a pass over ``rows`` tokens, each in a request that decodes."""
        return self._passes.at(rows) or 1.0

    def of_drafting(self, depth: int) -> float:
        """Seconds of drafting so many tokens for each request."""
        return self._drafting.at(depth, proportional=not self._at_once)

    def charge(self, depth: int, seconds: float) -> float:
        """What drafting is charged that took ``seconds``. Nothing before any depth is known."""
        if not self._knows_drafting(self._drafting.largest):
            return 0.0
        return min(seconds, MOST_CHARGED * self.of_drafting(depth))

    def of_trying(self, rows: int, depth: int) -> float:
        """Seconds that a step with so many drafts of one request takes longer than one without."""
        return self.of_pass(rows + depth) - self.of_pass(rows) + self.of_drafting(depth)

    def is_doubtful(self, rows: int, step: int) -> bool:
        """Whether it is to be measured anew how long the least drafting takes, and the pass that
        checks it: until both are known, and then now and then, for nothing else renews them."""
        count = self._passes.num_readings(rows + 1)
        if not self._knows_drafting(1) or 0 < count < KNOWN_FROM:
            return True
        enough = self.of_trying(rows, 1) / (SHARE * self.of_pass(rows))
        return step - self.drafted_at >= min(enough, DOUBTED_AFTER << self._num_doubts)

    def doubt(self, rows: int, step: int) -> None:
        """They are measured anew in ``step``: where they are known, one new reading is to count."""
        if step != self._doubted_at and self._knows_drafting(1):
            self._num_doubts, self._doubted_at = min(self._num_doubts + 1, 30), step
            self._passes.doubt(above=rows)
            self._drafting.doubt()

    def believe(self) -> None:
        """By the latest measurements drafts pay."""
        self._num_doubts = 0

    def _knows_drafting(self, depth: int) -> bool:
        return self._drafting.num_readings(depth) >= KNOWN_FROM


@dataclass(slots=True)
class Outlook:
    """What all requests' decisions share, for some steps: it is too much to compute for each.

    Attributes:
        step: Since which it holds; ``rows``: requests that draw in a step.
        prior: Acceptance that is expected of each position.
        plain: Seconds of a pass without drafts; ``seconds``: of drafting so many tokens for each
            request and of the pass that checks them, from one on. Passes more than twice as large
            as any before are left out.
    """

    step: int
    rows: int
    prior: list[float]
    plain: float
    seconds: list[float]

    @classmethod
    def of(cls, step: int, rows: int, prior: list[float], times: DraftTimes, most: int) -> Outlook:
        """As of now, for depths up to ``most``."""
        deepest = min(most, max(1, 2 * times.largest_pass // rows - 1))
        seconds = [
            times.of_pass(rows * (1 + depth)) + times.of_drafting(depth)
            for depth in range(1, deepest + 1)
        ]
        return cls(step, rows, prior, times.of_pass(rows), seconds)

    def best(self, rates: list[float]) -> tuple[int, float]:
        """The best depth but 0, and how many times more tokens per second than without drafts."""
        best, best_speed, expected, reached = 1, 0.0, 1.0, 1.0
        for depth, (rate, seconds) in enumerate(zip(rates, self.seconds)):
            reached *= rate
            expected += reached
            speed = expected / seconds
            if speed > best_speed:
                best, best_speed = depth + 1, speed
        return best, best_speed * self.plain
