"""Distributions of weighted values: one gap between tokens counts for many requests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from twostroke.observability.latency import PERCENTILES, LatencyDistribution

# Values that agree in all but these last bits form a group: they share their first 8 digits or so.
GROUP_BITS = 44


def weighted_distribution(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.int64]
) -> LatencyDistribution:
    """``Distribution.of`` the values, each repeated as often as its weight; none is below 0."""
    kept = weights > 0
    if not kept.all():
        values, weights = values[kept], weights[kept]
    total = int(weights.sum())
    if not total:
        return LatencyDistribution(0.0, dict.fromkeys(PERCENTILES, 0.0))
    # Floats sort as their bits do: only the group that holds the percentile must be sorted.
    groups = values.view(np.int64) >> GROUP_BITS
    groups -= groups.min()
    ends = np.cumsum(np.bincount(groups, weights=weights))
    in_order: dict[int, tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]] = {}

    def nth(index: int) -> float:
        group = int(np.searchsorted(ends, index, side="right"))
        if group not in in_order:
            chosen = np.flatnonzero(groups == group)
            chosen = chosen[np.argsort(values[chosen])]
            until: npt.NDArray[np.int64] = np.cumsum(weights[chosen])
            in_order[group] = values[chosen], until + (int(ends[group - 1]) if group else 0)
        ordered, until = in_order[group]
        return float(ordered[np.searchsorted(until, index, side="right")])

    percentiles = {}
    for percent in PERCENTILES:
        position = (total - 1) * percent / 100
        below = int(position)
        low, high = nth(below), nth(min(below + 1, total - 1))
        percentiles[percent] = low + (high - low) * (position - below)
    return LatencyDistribution(exact_sum(values * weights) / total, percentiles)


def exact_sum(values: npt.NDArray[np.float64]) -> float:
    """The sum, rounded once, as ``math.fsum`` gives it; in whole numbers, so much faster."""
    if not len(values):
        return 0.0
    mantissas, exponents = np.frexp(values)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    low = int(exponents.min())
    present: list[int] = (np.flatnonzero(np.bincount(exponents - low)) + low).tolist()
    total = 0
    for exponent in present:
        mantissas_there = whole[exponents == exponent]
        # Halves, so that no sum of them overflows.
        total += (
            (int((mantissas_there >> 32).sum()) << 32) + int((mantissas_there & 0xFFFFFFFF).sum())
        ) << (exponent - low)
    return total / (1 << 53 - low) if low < 53 else float(total << low - 53)
