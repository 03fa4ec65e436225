"""Latencies of a run, and how far two runs of the same requests differ, with intervals."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from twostroke.observability.latency import time_per_output_token

Metric = Literal["ttft", "tpot", "itl", "stall", "e2el"]
# A stall is the longest gap between two tokens of a request.
METRIC_NAMES: dict[Metric, str] = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "stall": "longest gap",
    "e2el": "E2E",
}
RESAMPLES = 200
# Of the bootstrap's middle; a lever that helps in 19 of 20 resamples helps.
INTERVAL = (5.0, 95.0)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request of a run. ``gaps`` are seconds between its tokens; times are seconds."""

    arrival: float
    first_token: float
    finish: float
    gaps: tuple[float, ...]

    def values(self, metric: Metric) -> tuple[float, ...]:
        if metric == "itl":
            return self.gaps
        if metric == "stall":
            return (max(self.gaps),) if self.gaps else ()
        if metric == "ttft":
            return (self.first_token - self.arrival,)
        if metric == "e2el":
            return (self.finish - self.arrival,)
        tokens = len(self.gaps) + 1
        return (time_per_output_token(self.first_token, self.finish, tokens),) if self.gaps else ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A percentile of a metric; ``percentile`` 0 is the mean."""

    metric: Metric
    percentile: float

    @property
    def name(self) -> str:
        return METRIC_NAMES[self.metric] + (
            f" P{self.percentile:g}" if self.percentile else " mean"
        )

    def of(self, times: Sequence[RequestTimes]) -> float:
        return self._of([np.array(each.values(self.metric)) for each in times])

    def _of(self, values: Sequence[npt.NDArray[np.float64]]) -> float:
        joined = np.concatenate(values) if values else np.zeros(0)
        if not len(joined):
            return 0.0
        if not self.percentile:
            return float(joined.mean())
        return float(np.percentile(joined, self.percentile))

    def _tail(self, values: Sequence[npt.NDArray[np.float64]]) -> float:
        """The mean of what reaches the percentile; below the 90th, the percentile itself.

        A percentile jumps where few values lie about it; that mean does not.
        """
        if self.percentile < 90:
            return self._of(values)
        joined = np.concatenate(values) if values else np.zeros(0)
        count = len(joined) - int(len(joined) * self.percentile / 100)
        return float(np.partition(joined, -count)[-count:].mean()) if len(joined) else 0.0


SHOWN = (
    Figure("ttft", 50),
    Figure("ttft", 95),
    Figure("itl", 99),
    Figure("stall", 95),
    Figure("tpot", 50),
    Figure("e2el", 95),
)
MEAN_E2E = Figure("e2el", 0)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure before and after; the interval is that of ``after``.

    Attributes:
        helps: The share of the figure's tail (the mean of what is beyond the percentile) that goes,
            at the pessimistic end; negative: it may get worse.
    """

    figure: Figure
    before: float
    after: float
    low: float
    high: float
    helps: float

    @property
    def saved(self) -> float:
        """The share of ``before`` that goes."""
        return 1 - self.after / self.before if self.before > 0 else 0.0


def compare(
    figure: Figure,
    before: Sequence[RequestTimes],
    after: Sequence[RequestTimes],
    error: float = 0.0,
    resamples: int = RESAMPLES,
) -> Change:
    """The change of a figure over the same requests, by resampling requests.

    Args:
        error: How far the replay of what was recorded is off, as a share; it widens the interval.
        resamples: How many; 0: no interval is wanted.
    """
    first = [np.array(each.values(figure.metric)) for each in before]
    second = [np.array(each.values(figure.metric)) for each in after]
    was, now = figure._of(first), figure._of(second)
    if not resamples:
        return Change(figure, was, now, now, now, 1 - now / was if was > 0 else 0.0)
    dice = np.random.default_rng(zlib.crc32(figure.name.encode()))
    ends, savings = [], []
    for _ in range(resamples):
        rows = dice.integers(0, len(first), len(first))
        ends.append(figure._of([second[row] for row in rows]))
        b, a = (figure._tail([values[row] for row in rows]) for values in (first, second))
        savings.append(1 - a / b if b > 0 else 0.0)
    low, high = np.percentile(ends, INTERVAL)
    worst = float(np.percentile(savings, INTERVAL[0]))
    return Change(figure, was, now, float(low) * (1 - error), float(high) * (1 + error), worst)


def duration(seconds: float) -> str:
    """A time with three digits, in ms or s."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
