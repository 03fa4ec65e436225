"""From which length on a prompt is computed elsewhere: learned from those that were."""

from __future__ import annotations

from collections import deque
from itertools import combinations
from statistics import median

FIRST = 256  # tokens, before anything has been measured
LEAST, MOST = 64, 2048  # whatever was measured: longer ones go on being tried
MIN_MEASURED = 4  # of both kinds
KEPT = 32  # the latest of both
# Shorter ones say more about the fixed costs of a step than about the time of a token.
LEAST_PROMPT = 32


class MoveTimes:
    """Compares what a prompt takes to compute with what a request takes to move.

    A prompt of n tokens holds up the answers of its engine for as long as it is computed, about
    r n seconds. Where it is computed apart, its own second token waits for its blocks, about
    a + b n seconds. From n = a / (r - b) on the first is more. All three are medians of what was
    measured last, so that one request that was held up changes little.

    Attributes:
        num_moves: Requests that have moved since the start.
        move_seconds: What that took, together.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._moves: deque[tuple[int, float]] = deque(maxlen=KEPT)
        self._least = FIRST
        self.num_moves, self.move_seconds = 0, 0.0

    @property
    def least_tokens(self) -> int:
        """Prompts from this length on take longer to compute than to move."""
        return self._least

    def observe_prompt(self, num_tokens: int, seconds: float) -> None:
        """An engine with nothing else to do has computed so many tokens of a prompt."""
        if num_tokens >= LEAST_PROMPT:
            self._rates.append(seconds / num_tokens)
            self._least = self._crossing()

    def observe_move(self, num_tokens: int, seconds: float) -> None:
        """A request with a prompt of so many tokens got its next token from another engine."""
        self._moves.append((num_tokens, seconds))
        self.num_moves += 1
        self.move_seconds += seconds
        self._least = self._crossing()

    def _crossing(self) -> int:
        if min(len(self._rates), len(self._moves)) < MIN_MEASURED:
            return FIRST
        slopes = [
            (late - soon) / (long - short)
            for (short, soon), (long, late) in combinations(sorted(self._moves), 2)
            if long > short
        ]
        each = max(0.0, median(slopes)) if slopes else 0.0
        fixed = max(0.0, median(seconds - each * size for size, seconds in self._moves))
        gain = median(self._rates) - each
        return MOST if gain * MOST <= fixed else max(LEAST, round(fixed / gain))
