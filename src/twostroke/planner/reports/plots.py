"""Plots as SVG text: points, bars and lines, with axes from zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

from twostroke.planner.reports.style import COLOUR_STYLE, PLOT_STYLE

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 700, 320, 60, 44, 12, 28
# ``LETTER`` and ``LINE``: how wide a letter is, and how high a line.
BAR, BAR_LEFT, LETTER, LINE = 24, 130, 7, 13
COLOURS = {"low": "var(--three)", "middle": "var(--one)", "high": "var(--two)"}
# Lines that have other names take turns.
PALETTE = ("var(--one)", "var(--two)", "var(--three)")


class Mark(NamedTuple):
    """A point and what it is."""

    x: float
    y: float
    label: str


class _Frame:
    """Axes from zero to round numbers, and where a value lies between them."""

    def __init__(self, most_x: float, most_y: float, x_title: str, y_title: str) -> None:
        self._x, self._y = _round_up(most_x), _round_up(most_y)
        self._titles = x_title, y_title

    def x(self, value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * value / self._x, 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(value / self._y, 1.0), 1)

    def svg(self, content: Sequence[str]) -> str:
        parts = []
        for step in range(5):
            x, y = self._x * step / 4, self._y * step / 4
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{self.y(y)}"'
                f' y2="{self.y(y)}"/>'
            )
            parts.append(_text(LEFT - 6, self.y(y) + 4, _tick(y), "end"))
            parts.append(_text(self.x(x), HEIGHT - BOTTOM + 16, _tick(x), "middle"))
        x_title, y_title = self._titles
        parts.append(_text((LEFT + WIDTH) / 2, HEIGHT - 8, x_title, "middle"))
        parts.append(
            f'<text transform="rotate(-90)" x="{-(HEIGHT - BOTTOM) / 2}" y="14"'
            f' text-anchor="middle">{escape(y_title)}</text>'
        )
        inside = "".join([*parts, *content])
        label = escape(f"{y_title} against {x_title}", quote=True)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'


def scatter(marks: Sequence[Mark], x_title: str, y_title: str) -> str:
    """Points with their labels."""
    if not marks:
        return ""
    frame = _Frame(max(m.x for m in marks), max(m.y for m in marks), x_title, y_title)
    content, labels = [], _Labels()
    for mark in marks:
        x, y = frame.x(mark.x), frame.y(mark.y)
        label = escape(mark.label)
        content.append(
            f'<circle cx="{x}" cy="{y}" r="4" fill="var(--one)"><title>{label}</title></circle>'
        )
        side, shift = ("start", 8) if x < WIDTH / 2 else ("end", -8)
        for height in (y - 6, y + 16):
            if labels.have_room(x + shift, height, mark.label, side):
                content.append(_text(x + shift, height, mark.label, side))
                break
    return frame.svg(content)


class _Labels:
    """Where labels stand, so that no two meet; one without room is told by its point."""

    def __init__(self) -> None:
        self._boxes: list[tuple[float, float, float]] = []  # left, right, y

    def have_room(self, x: float, y: float, text: str, side: str) -> bool:
        """Whether a label fits there, which then stands there."""
        width = LETTER * len(text)
        left = x if side == "start" else x - width
        box = (left, left + width, y)
        if y < LINE or any(
            box[0] < right and left < box[1] and abs(y - other) < LINE
            for left, right, other in self._boxes
        ):
            return False
        self._boxes.append(box)
        return True


def lines(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    limit: float | None,
    *,
    limit_name: str = "target",
    is_cut: bool = True,
) -> str:
    """Lines by name.

    Args:
        limit: A line across, called ``limit_name``.
        is_cut: Whether values far above the limit are cut at the top.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return ""
    highest = max(y for _, y in points)
    if limit is not None:
        highest = max(highest, 1.2 * limit)
        highest = min(highest, 3 * limit) if is_cut else highest
    frame = _Frame(max(x for x, _ in points), highest, x_title, y_title)
    content = []
    for number, (name, curve) in enumerate(curves.items()):
        path = " ".join(f"{frame.x(x)},{frame.y(y)}" for x, y in curve)
        colour = COLOURS.get(name, PALETTE[number % len(PALETTE)])
        content.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        if curve:
            x, y = curve[-1]
            content.append(_text(frame.x(x), frame.y(y) - 5, name, "end"))
    if limit is not None:
        y = frame.y(limit)
        content.append(
            f'<line class="limit" stroke-dasharray="5 4" x1="{LEFT}"'
            f' x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        )
        content.append(_text(LEFT + 6, y - 5, limit_name, "start"))
    return frame.svg(content)


def bars(values: Sequence[tuple[str, float]], title: str) -> str:
    """Horizontal bars, one below the other, below a line that says what they are."""
    if not values:
        return ""
    highest = max(value for _, value in values) or 1.0
    left = max(BAR_LEFT, LETTER * max(len(name) for name, _ in values) + 16)
    content = [_text(left, TOP + 10, title, "start")]
    for row, (name, value) in enumerate(values, 1):
        y = TOP + row * BAR
        width = round((WIDTH - left - 90) * value / highest, 1)
        content.append(_text(left - 8, y + 14, name, "end"))
        content.append(
            f'<rect x="{left}" y="{y}" width="{width}" height="{BAR - 6}" fill="var(--one)"/>'
        )
        content.append(_text(left + width + 6, y + 14, f"{value:,.2f}", "start"))
    height = TOP + BAR * (1 + len(values))
    label = escape(title, quote=True)
    inside = "".join(content)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{inside}</svg>'


def standalone(svg: str) -> str:
    """A plot as a file of its own, light or dark as its reader's screen is."""
    begin, _, rest = svg.partition(">")
    begin = begin.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    style = f"{COLOUR_STYLE}{PLOT_STYLE}svg {{ background: var(--bg); font-family: sans-serif }}"
    return f"{begin}><style>{style}</style>{rest}\n"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}">{escape(text)}</text>'


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.999)
