"""The plot of a claim: as SVG, and in letters."""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.lab.claim import Bars, Curves
from twostroke.planner.reports.plots import bars, lines

WIDTH = 36  # letters of the longest bar


def plot_svg(plot: Bars | Curves) -> str:
    """The plot as an SVG element that a page styles."""
    if isinstance(plot, Bars):
        return bars(plot.values, plot.title)
    return lines(
        plot.curves, plot.x_title, plot.y_title, plot.limit, limit_name="claimed", is_cut=False
    )


def plot_text(plot: Bars | Curves) -> Iterator[str]:
    """The plot in lines of letters: a bar for each value."""
    if isinstance(plot, Bars):
        yield from _bars(list(plot.values), plot.title)
        return
    highest = max(y for curve in plot.curves.values() for _, y in curve)
    for name, curve in plot.curves.items():
        named = f"{name}: " if len(plot.curves) > 1 else ""
        values = [(f"{x:,.5g}" if x < 1e4 else f"{x:,.0f}", y) for x, y in curve]
        yield from _bars(values, f"{named}{plot.y_title}, by {plot.x_title}", highest)


def _bars(
    values: list[tuple[str, float]], title: str, highest: float | None = None
) -> Iterator[str]:
    yield title
    most = highest or max(value for _, value in values) or 1.0
    longest = max(len(name) for name, _ in values)
    for name, value in values:
        bar = "█" * max(1, round(WIDTH * value / most)) if value else ""
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        yield f"  {name:>{longest}} {bar} {shown}"
