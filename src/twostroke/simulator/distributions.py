"""Percentiles of values that come with weights: a run of steps gives one gap between tokens to many requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twostroke.bench.metrics import Distribution

PERCENTILES = (50, 90, 95, 99)


def weighted(values: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> Distribution:
    """What ``Distribution.of`` says of each value repeated as often as its weight says."""
    kept = weights > 0
    values, weights = values[kept], weights[kept]
    total = int(weights.sum())
    if not total:
        return Distribution(0.0, dict.fromkeys(PERCENTILES, 0.0))
    order = np.argsort(values)  # equal values may come in any order: neither percentiles nor the sum can tell
    values, ends = values[order], np.cumsum(weights[order])

    def nth(index: int) -> float:
        return float(values[np.searchsorted(ends, index, side="right")])

    percentiles = {}
    for percent in PERCENTILES:
        position = (total - 1) * percent / 100
        below = int(position)
        low, high = nth(below), nth(min(below + 1, total - 1))
        percentiles[percent] = low + (high - low) * (position - below)
    mean = exact_sum(values * weights[order]) / total
    return Distribution(mean, percentiles)


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The sum, rounded once: what ``math.fsum`` says, in whole numbers, and much faster."""
    if not len(values):
        return 0.0
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    found: list[int] = np.unique(exponents).tolist()
    low, total = found[0], 0
    for exponent in found:
        these = whole[exponents == exponent]
        # Halves, so that no sum of them overflows.
        total += ((int((these >> 32).sum()) << 32) + int((these & 0xFFFFFFFF).sum())) << (exponent - low)
    return total / (1 << 53 - low) if low < 53 else float(total << low - 53)
