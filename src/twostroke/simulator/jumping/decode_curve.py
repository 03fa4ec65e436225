"""What steps that only decode take, without asking the cost model each time.

For a given number of requests the time of such a step is a smooth, nearly straight function of the
tokens that they attend to. The cost model is asked at contexts ``SPACING`` tokens per request
apart, and straight lines join its answers. Stepping and jumping read the same lines by the same
arithmetic, so both get the same digits.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Literal, NamedTuple

from twostroke.simulator.cost.estimate import CostModel
from twostroke.timing.step_shape import StepShape

Bound = Literal["seconds", "low", "high"]
# Tokens per request between two contexts that the cost model is asked about.
SPACING = 64


class CurvePiece(NamedTuple):
    """A straight line: ``seconds`` at context ``start``, ``slope`` more for each token.

    It holds before context ``end``.
    """

    start: int
    end: int
    seconds: float
    slope: float
    binding: str

    def at(self, context: int) -> float:
        return self.seconds + (context - self.start) * self.slope


class RunTimes(NamedTuple):
    """Consecutive steps.

    Attributes:
        times: When the first begins, then when each ends.
        durations: Seconds of each step.
        bindings: What the steps wait for: names, each with a number of consecutive steps.
    """

    times: list[float]
    durations: list[float]
    bindings: list[tuple[str, int]]


class DecodeCurve:
    """Durations of decode steps.

    Args:
        bound: Which end of the estimate's interval is taken for the truth.
    """

    def __init__(self, cost: CostModel, bound: Bound) -> None:
        self._cost = cost
        self._bound = bound
        self._pieces: dict[tuple[int, int], CurvePiece] = {}
        self._answers: dict[tuple[int, int], tuple[float, str]] = {}

    def piece(self, num_requests: int, context: int) -> CurvePiece:
        """The line of steps in which this many requests attend to ``context`` tokens."""
        width = num_requests * SPACING
        key = num_requests, context // width
        piece = self._pieces.get(key)
        if piece is None:
            end = (key[1] + 1) * width
            start = max(end - width, num_requests)  # each request attends to itself at least
            first_seconds, binding = self._ask(num_requests, start)
            last_seconds, _ = self._ask(num_requests, end)
            slope = (last_seconds - first_seconds) / (end - start)
            piece = self._pieces[key] = CurvePiece(start, end, first_seconds, slope, binding)
        return piece

    def run(
        self, num_requests: int, context: int, max_steps: int, now: float, until: float
    ) -> RunTimes:
        """Steps from ``now`` on, up to the first that ends at ``until`` or later; at least one.

        Args:
            context: Tokens attended to in the first step; ``num_requests`` more in each further.
        """
        piece = self.piece(num_requests, context)
        first_seconds = piece.at(context)
        if until - now < max_steps * first_seconds:  # those beyond would be computed in vain
            max_steps = int((until - now) / first_seconds) + 1 if until > now else 1
        durations: list[float] = []
        bindings: list[tuple[str, int]] = []
        while True:
            start, end, seconds, slope, binding = piece
            count = min((end - context + num_requests - 1) // num_requests, max_steps)
            offset = context - start
            offsets = range(offset, offset + count * num_requests, num_requests)
            durations += [seconds + offset * slope for offset in offsets]
            bindings.append((binding, count))
            max_steps -= count
            if not max_steps:
                break
            context += count * num_requests
            piece = self.piece(num_requests, context)
        times = list(accumulate(durations, initial=now))
        if len(times) > 2 and times[-2] >= until:
            return _cut(times, durations, bindings, until)
        return RunTimes(times, durations, bindings)

    def _ask(self, num_requests: int, context: int) -> tuple[float, str]:
        """Seconds, and what they wait for. Kept, since one line begins where another ends."""
        answer = self._answers.get((num_requests, context))
        if answer is None:
            estimate = self._cost.step(StepShape(num_requests, context, (), num_requests))
            answer = float(getattr(estimate, self._bound)), estimate.binding
            self._answers[num_requests, context] = answer
        return answer


def _cut(
    times: list[float], durations: list[float], bindings: list[tuple[str, int]], until: float
) -> RunTimes:
    """Leave out the steps that begin at ``until`` or later: how many fit was an estimate."""
    num_steps = bisect_left(times, until, 1, len(times) - 1)
    kept: list[tuple[str, int]] = []
    num_left = num_steps
    for binding, count in bindings:
        if num_left:
            kept.append((binding, min(count, num_left)))
            num_left -= min(count, num_left)
    return RunTimes(times[: num_steps + 1], durations[:num_steps], kept)
