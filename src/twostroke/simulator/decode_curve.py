"""What steps that only decode take, without asking the cost model each time.

For a given number of requests the time of such a step is a smooth, nearly straight function of the tokens that they
attend to. The cost model is asked at contexts ``SPACING`` tokens per request apart, and straight lines join its
answers. Stepping and jumping read the same lines by the same arithmetic, so both get the same digits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, islice
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from twostroke.simulator.cost_model import CostModel
from twostroke.simulator.step_shape import StepShape

# Steps from which on numpy is faster than Python; both add one duration after the other, and so to the same digits.
MANY = 24
Bound = Literal["seconds", "low", "high"]
# Tokens per request between two contexts that the cost model is asked about.
SPACING = 64


class Piece(NamedTuple):
    """A straight line: ``seconds`` at context ``start``, ``slope`` more for each token, until before ``end``."""

    start: int
    end: int
    seconds: float
    slope: float
    binding: str

    def at(self, context: int) -> float:
        return self.seconds + (context - self.start) * self.slope


class DecodeRun(msgspec.Struct, frozen=True):
    """Consecutive steps: when the first begins, then when each ends; and what how many of them wait for."""

    times: array[float]
    bindings: list[tuple[str, int]]


class DecodeCurve:
    """Durations of decode steps.

    Args:
        bound: Which end of the estimate's interval is taken for the truth.
    """

    def __init__(self, cost: CostModel, bound: Bound) -> None:
        self._cost = cost
        self._bound = bound
        self._pieces: dict[tuple[int, int], Piece] = {}
        self._asked: dict[tuple[int, int], tuple[float, str]] = {}

    def piece(self, requests: int, context: int) -> Piece:
        """The line on which a step lies in which ``requests`` requests attend to ``context`` tokens together."""
        width = requests * SPACING
        key = requests, context // width
        found = self._pieces.get(key)
        if found is None:
            end = (key[1] + 1) * width
            start = max(end - width, requests)  # nobody attends to nothing
            left, binding = self._ask(requests, start)
            right, _ = self._ask(requests, end)
            found = Piece(start, end, left, (right - left) / (end - start), binding)
            self._pieces[key] = found
        return found

    def run(self, requests: int, context: int, steps: int, now: float, until: float) -> DecodeRun:
        """Steps from ``now`` on, at most ``steps``, up to the first that ends at ``until`` or later; at least one.

        Args:
            context: Tokens attended to in the first step; ``requests`` more in each further one.
        """
        times = array("d", (now,))
        bindings: list[tuple[str, int]] = []
        while not bindings or (steps and now < until):
            lines: list[tuple[float, float, range]] = []
            while not lines or (steps and now < until):
                start, end, seconds, slope, binding = self.piece(requests, context)
                behind, inside = context - start, min(steps, -(-(end - context) // requests))
                first = seconds + behind * slope
                if until - now < inside * first:
                    inside = int(max(until - now, 0.0) / first) + 1  # those beyond would be computed in vain
                lines.append((seconds, slope, range(behind, behind + inside * requests, requests)))
                before = bindings.pop()[1] if bindings and bindings[-1][0] == binding else 0
                bindings.append((binding, before + inside))
                steps -= inside
                context += inside * requests
                now += inside * first  # about, and hardly ever later than that
            times.extend(_ends(times[-1], lines))
            now = times[-1]
        # Estimating how many fit may have gone past the end.
        surplus = len(times) - 1 - bisect_left(times, until, 1, len(times) - 1)
        if surplus:
            del times[-surplus:]
        while surplus:
            binding, count = bindings.pop()
            if count > surplus:
                bindings.append((binding, count - surplus))
            surplus = max(surplus - count, 0)
        return DecodeRun(times, bindings)

    def _ask(self, requests: int, context: int) -> tuple[float, str]:
        """Seconds, and what they wait for. One line's end is the next one's beginning, so answers are kept."""
        found = self._asked.get((requests, context))
        if found is None:
            estimate = self._cost.step(StepShape(requests, context, (), requests))
            found = self._asked[requests, context] = float(getattr(estimate, self._bound)), estimate.binding
        return found


def _ends(now: float, lines: list[tuple[float, float, range]]) -> array[float]:
    """When consecutive steps from ``now`` on end that take ``seconds + slope * at``, for each ``at`` of each line."""
    if sum([len(behind) for _, _, behind in lines]) < MANY:
        durations = [seconds + at * slope for seconds, slope, behind in lines for at in behind]
        return array("d", islice(accumulate(durations, initial=now), 1, None))
    parts = [np.arange(at.start, at.stop, at.step, dtype=np.float64) * slope + seconds for seconds, slope, at in lines]
    steps = np.concatenate(parts) if len(parts) > 1 else parts[0]
    steps[0] += now
    return array("d", np.add.accumulate(steps).tobytes())
