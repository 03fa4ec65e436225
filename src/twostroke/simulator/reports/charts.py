"""Charts of a page: their data as JSON, which ``page/page.js`` draws with uPlot, and plain bars."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

# From this ratio of the largest to the smallest value on, a linear axis would hide the small ones.
LOG_RATIO = 30
# Colours of lines that mean nothing by themselves; variables of page.css.
PALETTE = ("c0", "c1", "c2", "c3", "c4", "c5")
# Digits of a number on a page: more than a chart can show.
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        name: What the legend calls it.
        x: Ascending values; ``y`` has one for each.
        low: Lower edge of a band around the line, or empty; ``high`` likewise.
        colour: A colour variable of page.css.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: str
    dashed: bool = False

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "colour": self.colour, "dashed": self.dashed}
        columns = {"x": self.x, "y": self.y, "low": self.low, "high": self.high}
        return fields | {name: _rounded(values) for name, values in columns.items() if values}

    def values(self) -> list[float]:
        return [*self.y, *self.low, *self.high]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineLine:
    """A line over time: one column of a timeline, which the page holds once for all its charts.

    Attributes:
        timeline: Index of the timeline in ``PageCharts.timelines``.
        column: Name of the column.
    """

    name: str
    timeline: int
    column: str
    colour: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "colour": self.colour,
            "timeline": self.timeline,
            "column": self.column,
        }


@dataclass(slots=True)
class PageCharts:
    """Collects the charts of one page. Every method returns the HTML that takes the chart's place.

    Attributes:
        timelines: Columns of values over ``time``, one timeline for each run.
    """

    timelines: list[dict[str, list[float]]] = field(default_factory=list)
    _charts: list[dict[str, Any]] = field(default_factory=list)

    def add_timeline(self, columns: Mapping[str, Sequence[float]]) -> int:
        """Keep a timeline; returns its index."""
        self.timelines.append({name: _rounded(values) for name, values in columns.items()})
        return len(self.timelines) - 1

    def over_load(self, title: str, x_label: str, y_label: str, lines: Sequence[Line]) -> str:
        """Lines with a mark at each value; a logarithmic y axis where values differ widely."""
        values = [value for line in lines for value in line.values()]
        if not values:
            return ""
        log = min(values) > 0 and max(values) / min(values) > LOG_RATIO
        chart = {"x_label": x_label, "y_label": y_label, "log": log, "points": True}
        return self._figure(title, chart, lines)

    def over_time(
        self,
        title: str,
        y_label: str,
        lines: Sequence[TimelineLine],
        *,
        step: bool = False,
        group: str,
    ) -> str:
        """Lines over simulated time.

        Args:
            step: Values hold until the next one.
            group: Charts of one group show the same moment under the cursor.
        """
        if not any(self.timelines[line.timeline]["time"] for line in lines):
            return ""
        chart = {"x_label": "seconds", "y_label": y_label, "step": step, "group": group}
        return self._figure(title, chart, lines)

    def script(self) -> str:
        """All data, as text for a script element of type ``application/json``."""
        data = {"timelines": self.timelines, "charts": self._charts}
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
        return text.replace("<", "\\u003c")  # no label can end the element

    def _figure(
        self, title: str, chart: dict[str, Any], lines: Sequence[Line | TimelineLine]
    ) -> str:
        number = len(self._charts)
        self._charts.append({"title": title, **chart, "lines": [line.to_json() for line in lines]})
        return (
            f"<figure><figcaption>{escape(title)}</figcaption>"
            f'<div class="chart" id="chart-{number}"></div></figure>'
        )


def bar_chart(title: str, unit: str, bars: Sequence[tuple[str, float | None]]) -> str:
    """One horizontal bar per label, with its value beside it; ``None`` is left out."""
    shown = [(label, value) for label, value in bars if value is not None]
    if not shown:
        return ""
    longest = max(value for _, value in shown) or 1.0
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        f'<td><progress max="1" value="{value / longest:.4g}" aria-hidden="true"></progress></td>'
        f"<td>{escape(_with_unit(value, unit))}</td></tr>"
        for label, value in shown
    )
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<table class="bars">{rows}</table></figure>'
    )


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _with_unit(value: float, unit: str) -> str:
    if unit == "$":
        return f"${value:.3f}"
    return f"{value:.1f} %" if unit == "%" else f"{_short(value)} {unit}"


def _short(value: float) -> str:
    """Four digits at most, thousands as k."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.4g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.4g}k"
    return f"{value:.4g}"
