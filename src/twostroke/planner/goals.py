"""Targets of a plan: a latency at a percentile or its mean, from text such as ``p95=0.5``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from twostroke.core.errors import ConfigError
from twostroke.core.flags.values import parse_seconds
from twostroke.core.targets import MILLISECONDS_FROM
from twostroke.planner.options import GoalOptions

Metric = Literal["ttft", "tpot", "e2e"]
_PERCENTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,3})?)")
# What ``MILLISECONDS_FROM`` calls a metric otherwise.
_OTHER_NAMES = {"e2e": "e2el"}
DEFAULT = "p95"


@dataclass(frozen=True, slots=True)
class Goal:
    """One latency that a plan must keep to.

    Attributes:
        percentile: From 0 to 100; ``None``: the mean.
        limit: Seconds.
    """

    metric: Metric
    percentile: float | None
    limit: float

    @property
    def name(self) -> str:
        """Its name in tables: ``TTFT P95``."""
        percentile = "mean" if self.percentile is None else f"P{self.percentile:g}"
        return f"{self.metric.upper()} {percentile}"

    @property
    def field(self) -> str:
        """Its name in JSON: ``ttft_p95``."""
        percentile = "mean" if self.percentile is None else f"p{self.percentile:g}"
        return f"{self.metric}_{percentile}"

    @property
    def text(self) -> str:
        return f"{self.name} {shown_seconds(self.limit)}"


def parse_goals(options: GoalOptions) -> tuple[Goal, ...]:
    """All latency targets, in the order of the flags. Raises ConfigError."""
    goals = [
        _parse(metric, part)
        for metric in get_args(Metric)
        for text in getattr(options, metric)
        for part in text.split(",")
    ]
    if len({goal.field for goal in goals}) < len(goals):
        raise ConfigError("a target is given twice", hint="give each percentile once")
    return tuple(goals)


def _parse(metric: Metric, text: str) -> Goal:
    name, _, number = (part.strip() for part in text.rpartition("="))
    name = (name or DEFAULT).lower()
    match = _PERCENTILE.fullmatch(name)
    hint = f"write --{metric} p95=0.5, p50=200ms or mean=0.3"
    try:
        limit = parse_seconds(number)
        if match is None and name != "mean":
            raise ValueError(f"{name!r} is no percentile")
        percentile = float(match[1]) if match else None
        if percentile is not None and not 1 <= percentile <= 99.9:
            raise ValueError("percentiles go from p1 to p99.9")
    except ValueError as error:
        raise ConfigError(f"--{metric} {text!r}: {error}", hint=hint) from None
    most = MILLISECONDS_FROM[_OTHER_NAMES.get(metric, metric)]
    if not 0 < limit < most:
        raise ConfigError(
            f"--{metric} {text!r} must be above 0 and below {most:g} seconds",
            hint="seconds are meant; milliseconds are written 200ms",
        )
    return Goal(metric, percentile, limit)


def shown_seconds(seconds: float) -> str:
    """``40 ms`` or ``1.20 s``, with three digits."""
    if seconds < 1:
        return f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"
