"""Least absolute deviations by reweighted least squares; no scipy, every run the same.

Levenberg and Marquardt's method (doi:10.1137/0111030) in the logarithms of the values, since they
are rates and times. Weights of one over the deviation make absolute values of squares
(Schlossmacher, doi:10.1080/01621459.1973.10481436).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, isfinite
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
# Name -> (start, lowest, highest), all above 0.
Space = Mapping[str, tuple[float, float, float]]
Errors = Callable[[dict[str, float]], Sequence[float]]

STEPS = 60
# Weights are one over the deviation, or over these where it is smaller: of an error, of a move.
MIN_ERROR, MIN_MOVE = 0.02, 0.3
# In logarithms: step of a difference quotient, longest move of a value in one step, spread of the
# starts. MIN_GAIN: a smaller gain of the loss ends the descent.
SLOPE_STEP, MAX_MOVE, SPREAD, MIN_GAIN = 1e-3, 1.5, 1.0, 1e-5
# Damping at first and its bounds. Above LOOSE a small gain means a short step, not the end.
DAMPING, MIN_DAMPING, MAX_DAMPING, LOOSE = 1e-3, 1e-6, 1e6, 1e-1


class Minimum(NamedTuple):
    """The best values, and their loss."""

    values: dict[str, float]
    loss: float


def least_deviations(
    errors: Errors,
    shares: Sequence[float],
    space: Space,
    *,
    pull: float,
    starts: int = 8,
) -> Minimum:
    """The values with the least loss.

    The loss is the sum of shares times absolute errors, plus ``pull`` for each factor of e that a
    value moves from its start. The pull keeps values at their start that no measurement depends
    on. There are several minima, so the best of several descents counts: one from the start, the
    others from points around it.

    Args:
        errors: For some values, the error of each measurement.
        shares: Weights of the measurements.
        space: Start, lowest and highest value by name, all above 0.
        pull: Above 0.
        starts: How many descents, at least one.
    """
    random, names = Random(0), list(space)
    home = np.log([space[name][0] for name in names])
    low, high = (np.log([space[name][end] for name in names]) for end in (1, 2))
    descent = _Descent(errors, names, np.array(shares), pull, home, low, high)
    minima = []
    for number in range(starts):
        offset = [random.gauss(0.0, SPREAD) if number else 0.0 for _ in names]
        minima.append(descent.run(np.clip(home + offset, low, high)))
    loss, point = min(minima, key=lambda minimum: minimum[0])
    return Minimum(descent.values(point), loss)


class _Descent:
    def __init__(
        self,
        errors: Errors,
        names: list[str],
        shares: Array,
        pull: float,
        home: Array,
        low: Array,
        high: Array,
    ) -> None:
        self._errors, self._names, self._shares, self._pull = errors, names, shares, pull
        self._home, self._low, self._high = home, low, high

    def values(self, point: Array) -> dict[str, float]:
        return {name: exp(value) for name, value in zip(self._names, point.tolist())}

    def run(self, point: Array) -> tuple[float, Array]:
        """The loss of a minimum near ``point``, and where it is."""
        errors = self._errors_at(point)
        loss, damping = self._loss(errors, point), DAMPING
        for _ in range(STEPS if isfinite(loss) else 0):
            curvature, downhill = self._quadratic(point, errors)
            before = loss
            while damping < MAX_DAMPING:
                tried = self._moved(point, curvature, downhill, damping)
                tried_errors = self._errors_at(tried)
                if (tried_loss := self._loss(tried_errors, tried)) < loss:
                    point, errors, loss = tried, tried_errors, tried_loss
                    break
                damping *= 4
            if loss == before or (before - loss < MIN_GAIN and damping < LOOSE):
                break
            damping = max(damping / 6, MIN_DAMPING)
        return loss, point

    def _errors_at(self, point: Array) -> Array:
        return np.array(self._errors(self.values(point)))

    def _loss(self, errors: Array, point: Array) -> float:
        loss = float(self._shares @ np.abs(errors) + self._pull * np.abs(point - self._home).sum())
        return loss if isfinite(loss) else inf

    def _quadratic(self, point: Array, errors: Array) -> tuple[Array, Array]:
        """A sum of squares with the loss's slope at ``point``: its curvature and descent."""
        slopes = np.empty((len(errors), len(point)))
        for index in range(len(point)):
            shifted = point.copy()
            shifted[index] += (
                SLOPE_STEP if point[index] + SLOPE_STEP <= self._high[index] else -SLOPE_STEP
            )
            slopes[:, index] = (self._errors_at(shifted) - errors) / (shifted[index] - point[index])
        weights = self._shares / np.maximum(np.abs(errors), MIN_ERROR)
        pulls = self._pull / np.maximum(np.abs(point - self._home), MIN_MOVE)
        curvature = (slopes.T * weights) @ slopes + np.diag(pulls)
        return curvature, -((slopes.T * weights) @ errors + pulls * (point - self._home))

    def _moved(self, point: Array, curvature: Array, downhill: Array, damping: float) -> Array:
        """``point`` after a step; values that would leave their bounds stay fixed."""
        outwards = ((point <= self._low) & (downhill < 0)) | (
            (point >= self._high) & (downhill > 0)
        )
        free = np.flatnonzero(~outwards)
        part = curvature[np.ix_(free, free)]
        move = np.zeros_like(point)
        move[free] = np.linalg.solve(part + np.diag(damping * np.diag(part)), downhill[free])
        move *= MAX_MOVE / max(MAX_MOVE, float(np.abs(move).max()))
        moved: Array = np.clip(point + move, self._low, self._high)
        return moved
