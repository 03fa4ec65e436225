"""What steps that only decode take, without asking the cost model each time.

For a given number of requests the time of such a step is a smooth, nearly straight function of the
tokens that they attend to. The cost model is asked at contexts ``SPACING`` tokens per request
apart, and straight lines join its answers. Stepping and jumping read the same lines by the same
arithmetic, so both get the same digits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from twostroke.simulator.cost.cost_model import CostModel
from twostroke.simulator.cost.step_shape import StepShape

# Steps from which on numpy is faster than Python; both add one duration after the other, and so to
# the same digits.
MANY = 16
Bound = Literal["seconds", "low", "high"]
# Tokens per request between two contexts that the cost model is asked about.
SPACING = 64
# Pieces, half a kilobyte each, whose durations are kept.
MOST_KEPT = 10_000


class Piece(NamedTuple):
    """A straight line: ``seconds`` at context ``start``, ``slope`` more for each token, until
    before ``end``.
    """

    start: int
    end: int
    seconds: float
    slope: float
    binding: str

    def at(self, context: int) -> float:
        return self.seconds + (context - self.start) * self.slope


class DecodeRun(msgspec.Struct, frozen=True):
    """Consecutive steps: when the first begins, then when each ends; and what how many of them wait
    for.
    """

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
        self._kept: dict[tuple[int, int, int], npt.NDArray[np.float64]] = {}
        self._asked: dict[tuple[int, int], tuple[float, str]] = {}

    def piece(self, requests: int, context: int) -> Piece:
        """The line on which a step lies in which ``requests`` requests attend to ``context`` tokens
        together.
        """
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
        """Steps from ``now`` on, at most ``steps``, up to the first that ends at ``until`` or
        later; at least one.

        Where later steps take less than earlier ones, they may end a little before that.

        Args:
            context: Tokens attended to in the first step; ``requests`` more in each further one.
        """
        piece = self.piece(requests, context)
        first = piece.seconds + (context - piece.start) * piece.slope
        if until - now < steps * first:  # those beyond would be computed in vain
            steps = int((until - now) / first) + 1 if until > now else 1
        bindings: list[tuple[str, int]] = []
        few: list[float] = []
        many: list[npt.NDArray[np.float64]] = []
        is_few = steps < MANY
        while True:
            start, end, seconds, slope, binding = piece
            behind, inside = context - start, (end - context + requests - 1) // requests
            if inside > steps:
                inside = steps
            if is_few:
                few += [
                    seconds + at * slope
                    for at in range(behind, behind + inside * requests, requests)
                ]
            else:
                many.append(self._durations(piece, requests, behind, inside))
            before = bindings.pop()[1] if bindings and bindings[-1][0] == binding else 0
            bindings.append((binding, before + inside))
            steps -= inside
            if not steps:
                break
            context += inside * requests
            piece = self.piece(requests, context)
        if is_few:
            times = array("d", list(accumulate(few, initial=now)))
        else:
            times = array("d", np.add.accumulate(np.concatenate(((now,), *many))).tobytes())
        if len(times) > 2 and times[-2] >= until:
            _cut(times, bindings, until)
        return DecodeRun(times, bindings)

    def _durations(
        self, piece: Piece, requests: int, behind: int, count: int
    ) -> npt.NDArray[np.float64]:
        """Of steps on one line, the first of them so many tokens behind its beginning.

        Few requests pass the same places again and again, so those are kept.
        """
        first, rest = divmod(behind, requests)
        key = requests, piece.start, rest
        found = self._kept.get(key)
        if found is None:
            at = np.arange(rest, piece.end - piece.start, requests, dtype=np.float64)
            found = at * piece.slope + piece.seconds
            if len(self._kept) < MOST_KEPT:
                self._kept[key] = found
        return found[first : first + count]

    def _ask(self, requests: int, context: int) -> tuple[float, str]:
        """Seconds, and what they wait for. One line's end is the next one's beginning, so answers
        are kept.
        """
        found = self._asked.get((requests, context))
        if found is None:
            estimate = self._cost.step(StepShape(requests, context, (), requests))
            found = self._asked[requests, context] = (
                float(getattr(estimate, self._bound)),
                estimate.binding,
            )
        return found


def _cut(times: array[float], bindings: list[tuple[str, int]], until: float) -> None:
    """Drop steps that begin at ``until`` or later: how many fit was estimated."""
    surplus = len(times) - 1 - bisect_left(times, until, 1, len(times) - 1)
    del times[-surplus:]
    while surplus:
        binding, count = bindings.pop()
        if count > surplus:
            bindings.append((binding, count - surplus))
        surplus = max(surplus - count, 0)
