"""Latencies of requests, defined as in `vllm bench serve`; benchmarks and simulator share them.

- TTFT: from the arrival of a request to its first output token.
- ITL: between two successive output tokens.
- TPOT: mean time per output token after the first.
- E2EL: from the arrival of a request to its last output token.
- Goodput: requests per second that met all their targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

PERCENTILES = (50, 90, 95, 99)
# Keys of reports, and their titles in tables.
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
# Latencies of one request that can have a target.
TARGETS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class LatencyDistribution:
    """Mean and percentiles, in the unit of the values; all 0 without values."""

    mean: float
    percentiles: dict[int, float]

    @classmethod
    def of(
        cls, values: Sequence[float], percentiles: Sequence[int] = PERCENTILES
    ) -> LatencyDistribution:
        ordered = sorted(values)
        return cls(
            fmean(ordered) if ordered else 0.0, {p: percentile(ordered, p) for p in percentiles}
        )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """A percentile of ascending values, interpolated as numpy does; 0 without values."""
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def time_per_output_token(first_token: float, last_token: float, output_tokens: int) -> float:
    """TPOT of a request from the times of its first and last token; 0 if it has only one."""
    return (last_token - first_token) / (output_tokens - 1) if output_tokens > 1 else 0.0


def meets_targets(request: object, targets: Mapping[str, float]) -> bool:
    """Whether a request exceeds no target (``ttft``, ``tpot``, ``e2el``: seconds).

    Args:
        request: Has an attribute of the name of each target.
    """
    return all(float(getattr(request, name)) <= limit for name, limit in targets.items())


def latency_fields(key: str, distribution: LatencyDistribution) -> dict[str, float]:
    """Fields of a report: ``mean_ttft_ms``, ``median_ttft_ms``, ``p99_ttft_ms`` ..."""
    fields = {f"mean_{key}_ms": 1000 * distribution.mean}
    for percent, seconds in distribution.percentiles.items():
        fields[f"{'median' if percent == 50 else f'p{percent}'}_{key}_ms"] = 1000 * seconds
    return fields


def latency_rows(
    distributions: Mapping[str, LatencyDistribution],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a table, in milliseconds."""
    percentiles = list(next(iter(distributions.values())).percentiles)
    header = ("ms", "mean", *("median" if p == 50 else f"p{p}" for p in percentiles))
    return header, [
        (
            title,
            *(f"{1000 * seconds:.2f}" for seconds in (spread.mean, *spread.percentiles.values())),
        )
        for title, spread in distributions.items()
    ]
