"""How long passes and drafting take, learned from the steps that were taken."""

from __future__ import annotations

from twostroke.timing.recent_times import KNOWN_FROM, RecentTimes
from twostroke.timing.trial_budget import SHARE

# Steps until the time of drafts is doubted that cannot pay by it; after each measurement that
# confirms it twice as many, up to where measuring costs its share of the time.
DOUBTED_AFTER = 32
# Drafting is charged this many times what it mostly takes: what took longer was held up by chance.
MOST_CHARGED = 2.0


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
        """Seconds of drafting ``depth`` tokens for each request."""
        return self._drafting.at(depth, proportional=not self._at_once)

    def charge(self, depth: int, seconds: float) -> float:
        """What drafting is charged that took ``seconds``. Nothing before any depth is known."""
        if not self._knows_drafting(self._drafting.largest):
            return 0.0
        return min(seconds, MOST_CHARGED * self.of_drafting(depth))

    def of_trying(self, rows: int, depth: int) -> float:
        """How many seconds ``depth`` drafts of one request add to a step."""
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
        """Believe the latest measurements: by these, drafts pay."""
        self._num_doubts = 0

    def _knows_drafting(self, depth: int) -> bool:
        return self._drafting.num_readings(depth) >= KNOWN_FROM
