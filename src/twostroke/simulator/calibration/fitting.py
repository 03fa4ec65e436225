"""Least absolute deviations by least squares with changing weights: without scipy, every run the
same.

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
# Smaller deviations weigh no more than this one; values closer to their start than that are pulled
# as if they were not.
LEAST_ERROR, LEAST_MOVE = 0.02, 0.3
# In logarithms: a step for slopes, the longest step of a value, the gain at which it is enough, how
# far starts spread.
SLOPE, LONGEST, ENOUGH, SPREAD = 1e-3, 1.5, 1e-5, 1.0
# Damping: at first, bounds, and below which a small gain is the end rather than a short step.
DAMPING, LEAST_DAMPING, MOST_DAMPING, FREE = 1e-3, 1e-6, 1e6, 1e-1


class Fit(NamedTuple):
    """Values, and the loss that they have."""

    values: dict[str, float]
    loss: float


def least_deviations(
    errors: Errors,
    shares: Sequence[float],
    space: Space,
    *,
    pull: float,
    starts: int = 8,
    seed: int = 0,
) -> Fit:
    """The values with the least loss: sum of shares times absolute errors, and ``pull`` for each
    factor of e moved.

    Where measurements say nothing about a value, the pull leaves it at its start. There are several
    minima, so the best of several descents counts: one from the start, the others from places
    around it.

    Args:
        errors: For some values, by how much each measurement is missed.
        shares: Weights of the measurements.
        pull: Above 0.
        starts: How many descents, at least one.
    """
    random, names = Random(seed), list(space)
    home = np.log([space[name][0] for name in names])
    low, high = (np.log([space[name][end] for name in names]) for end in (1, 2))
    descent = _Descent(errors, names, np.array(shares), pull, home, low, high)
    found = []
    for number in range(starts):
        away = [random.gauss(0.0, SPREAD) if number else 0.0 for _ in names]
        found.append(descent.run(np.clip(home + away, low, high)))
    loss, place = min(found, key=lambda one: one[0])
    return Fit(descent.values(place), loss)


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

    def values(self, place: Array) -> dict[str, float]:
        return {name: exp(value) for name, value in zip(self._names, place.tolist())}

    def run(self, place: Array) -> tuple[float, Array]:
        """The loss of the minimum that is found from ``place``, and where it is."""
        errors = self._at(place)
        loss, damping = self._loss(errors, place), DAMPING
        for _ in range(STEPS if isfinite(loss) else 0):
            curvature, downhill = self._bowl(place, errors)
            before = loss
            while damping < MOST_DAMPING:
                tried = self._moved(place, curvature, downhill, damping)
                missed = self._at(tried)
                if (reached := self._loss(missed, tried)) < loss:
                    place, errors, loss = tried, missed, reached
                    break
                damping *= 4
            if loss == before or (before - loss < ENOUGH and damping < FREE):
                break
            damping = max(damping / 6, LEAST_DAMPING)
        return loss, place

    def _at(self, place: Array) -> Array:
        return np.array(self._errors(self.values(place)))

    def _loss(self, errors: Array, place: Array) -> float:
        found = float(self._shares @ np.abs(errors) + self._pull * np.abs(place - self._home).sum())
        return found if isfinite(found) else inf

    def _bowl(self, place: Array, errors: Array) -> tuple[Array, Array]:
        """The squares that have the loss's slope at ``place``: their curvature, and where it goes
        down.
        """
        slopes = np.empty((len(errors), len(place)))
        for index in range(len(place)):
            beside = place.copy()
            beside[index] += SLOPE if place[index] + SLOPE <= self._high[index] else -SLOPE
            slopes[:, index] = (self._at(beside) - errors) / (beside[index] - place[index])
        weights = self._shares / np.maximum(np.abs(errors), LEAST_ERROR)
        pulls = self._pull / np.maximum(np.abs(place - self._home), LEAST_MOVE)
        curvature = (slopes.T * weights) @ slopes + np.diag(pulls)
        return curvature, -((slopes.T * weights) @ errors + pulls * (place - self._home))

    def _moved(self, place: Array, curvature: Array, downhill: Array, damping: float) -> Array:
        """A step. Values that would leave their bounds stay, and the others move as if those were
        no values.
        """
        outwards = ((place <= self._low) & (downhill < 0)) | (
            (place >= self._high) & (downhill > 0)
        )
        free = np.flatnonzero(~outwards)
        part = curvature[np.ix_(free, free)]
        move = np.zeros_like(place)
        move[free] = np.linalg.solve(part + np.diag(damping * np.diag(part)), downhill[free])
        move *= LONGEST / max(LONGEST, float(np.abs(move).max()))
        moved: Array = np.clip(place + move, self._low, self._high)
        return moved
