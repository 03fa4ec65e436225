"""Percentiles of values that come with weights: a run of steps gives one gap between tokens to many
requests.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twostroke.bench.metrics import Distribution

PERCENTILES = (50, 90, 95, 99)
# Of the 64 bits of a number, those that do not decide with which others it is looked at: 8 digits
# are left.
LATER_BITS = 44


def weighted(values: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]) -> Distribution:
    """What ``Distribution.of`` says of each value, none below 0, repeated as often as its weight
    says.
    """
    kept = weights > 0
    if not kept.all():
        values, weights = values[kept], weights[kept]
    total = int(weights.sum())
    if not total:
        return Distribution(0.0, dict.fromkeys(PERCENTILES, 0.0))
    # A number's first bits sort as it does: only those alike to the one asked for need be sorted
    # further.
    alike = values.view(np.int64) >> LATER_BITS
    alike -= alike.min()
    ends = np.cumsum(np.bincount(alike, weights=weights))
    in_order: dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = {}

    def nth(index: int) -> float:
        group = int(np.searchsorted(ends, index, side="right"))
        if group not in in_order:
            chosen = np.flatnonzero(alike == group)
            chosen = chosen[np.argsort(values[chosen])]
            until: npt.NDArray[np.int64] = np.cumsum(weights[chosen])
            in_order[group] = values[chosen], until + (int(ends[group - 1]) if group else 0)
        found, until = in_order[group]
        return float(found[np.searchsorted(until, index, side="right")])

    percentiles = {}
    for percent in PERCENTILES:
        position = (total - 1) * percent / 100
        below = int(position)
        low, high = nth(below), nth(min(below + 1, total - 1))
        percentiles[percent] = low + (high - low) * (position - below)
    return Distribution(exact_sum(values * weights) / total, percentiles)


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The sum, rounded once: what ``math.fsum`` says, in whole numbers, and much faster."""
    if not len(values):
        return 0.0
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    low = int(exponents.min())
    found: list[int] = (np.flatnonzero(np.bincount(exponents - low)) + low).tolist()
    total = 0
    for exponent in found:
        these = whole[exponents == exponent]
        # Halves, so that no sum of them overflows.
        total += ((int((these >> 32).sum()) << 32) + int((these & 0xFFFFFFFF).sum())) << (
            exponent - low
        )
    return total / (1 << 53 - low) if low < 53 else float(total << low - 53)
