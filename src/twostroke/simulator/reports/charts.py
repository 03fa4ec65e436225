"""Charts as inline SVG: no library, no network. Colours come from the page's style sheet, which
knows dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 40
NUM_COLOURS = 6
# From this ratio of the largest to the smallest value on, small ones would lie on the axis.
LOG_FROM = 30


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``low`` and ``high``, where given, make a band around it.

    Attributes:
        colour: Number of its colour; by default its own. Lines of one kind share theirs and differ
            in ``dashed``.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    colour: int | None = None
    dashed: bool = False


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    *,
    points: bool = False,
    step: bool = False,
) -> str:
    """Lines over a common x axis, with a legend where there are several.

    Args:
        points: Mark each value; hovering shows it. The y axis is then logarithmic if the values
            differ widely.
        step: Values hold until the next one.
    """
    xs = [x for line in series for x in line.x]
    ys = [y for line in series for y in (*line.y, *line.low, *line.high)]
    if not xs:
        return ""
    wide = points and min(ys) > 0 and max(ys) / min(ys) > LOG_FROM
    y_axis = (_LogAxis if wide else _Axis)(min(ys) if wide else 0.0, max(ys), HEIGHT - BOTTOM, TOP)
    x_axis = _Axis(min(0.0, min(xs)), max(xs), LEFT, WIDTH - RIGHT)
    parts = [_frame(x_axis, y_axis, x_label, y_label)]
    colours = [
        f"c{(at if line.colour is None else line.colour) % NUM_COLOURS}"
        for at, line in enumerate(series)
    ]
    for line, colour in zip(series, colours):
        parts.append(_line(line, colour, x_axis, y_axis, points, step))
    legend = ""
    if len(series) > 1:
        keys = (
            '<span class="key'
            f' {colour}{" dashed" if line.dashed else ""}">{escape(line.name)}</span>'
            for line, colour in zip(series, colours)
        )
        legend = f'<div class="legend">{"".join(keys)}</div>'
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{svg}</figure>"


def bar_chart(title: str, unit: str, bars: Sequence[tuple[str, float | None]]) -> str:
    """One horizontal bar per label, its value beside it; ``None`` is left out."""
    known = [(label, value) for label, value in bars if value is not None]
    if not known:
        return ""
    row, most = 26, max(value for _, value in known) or 1.0
    label_width, room = 190, WIDTH - 190 - 80
    parts = []
    for at, (label, value) in enumerate(known):
        y, width = at * row + 5, max(1.0, room * value / most)
        amount = escape(_with_unit(value, unit))
        shown = label if len(label) <= 28 else label[:27] + "…"
        parts.append(
            f'<text class="tick" x="{label_width - 8}" y="{y + 13}"'
            f' text-anchor="end">{escape(shown)}<title>{escape(label)}</title></text><rect'
            f' class="bar" x="{label_width}" y="{y}" width="{width:.1f}" height="{row - 9}"'
            f' rx="2"/><text class="value" x="{label_width + width + 6:.1f}"'
            f' y="{y + 13}">{amount}</text>'
        )
    height = len(known) * row + 8
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
    return f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"


class _Axis:
    """A linear scale whose end is a round number; ``begin`` and ``end`` are where it lies on the
    picture.
    """

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.step = _round_step((high - low) or 1.0)
        self.low = math.floor(low / self.step) * self.step
        self.high = max(math.ceil(high / self.step - 1e-9) * self.step, self.low + self.step)
        self._begin, self._end = begin, end

    def place(self, value: float) -> float:
        return self._begin + (value - self.low) / (self.high - self.low) * (self._end - self._begin)

    def ticks(self) -> list[float]:
        return [
            self.low + at * self.step for at in range(round((self.high - self.low) / self.step) + 1)
        ]


class _LogAxis(_Axis):
    """Powers of ten, and where they are few, also twice and five times them."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        factors = (1, 2, 5) if len(powers) <= 4 else (1,)
        marks = [factor * 10.0**power for power in powers for factor in factors]
        first = max(at for at, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
        last = min(
            (at for at, mark in enumerate(marks) if mark >= high * (1 - 1e-9)),
            default=len(marks) - 1,
        )
        self._ticks = marks[first : last + 1]
        self._begin, self._end = begin, end

    def place(self, value: float) -> float:
        low, high = math.log(self._ticks[0]), math.log(self._ticks[-1])
        return self._begin + (math.log(value) - low) / (high - low) * (self._end - self._begin)

    def ticks(self) -> list[float]:
        return self._ticks


def _round_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, for four to nine ticks."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= 8)


def _frame(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str) -> str:
    bottom = HEIGHT - BOTTOM
    parts = []
    for value in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}"'
            f' text-anchor="end">{_short(value)}</text>'
        )
    for value in x_axis.ticks():
        x = x_axis.place(value)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15}"'
            f' text-anchor="middle">{_short(value)}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 6}"'
        f' text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)"'
        f' text-anchor="middle">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _line(line: Series, colour: str, x_axis: _Axis, y_axis: _Axis, points: bool, step: bool) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(line.x, line.y)]
    parts = []
    if line.low and line.high:
        upper = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(line.x, line.high)]
        lower = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(line.x, line.low)]
        parts.append(f'<path class="band {colour}" d="{_path([*upper, *reversed(lower)])}Z"/>')
    if step:
        places_drawn = [places[0]]
        for (_, before), (x, y) in pairwise(places):
            places_drawn += [(x, before), (x, y)]
    else:
        places_drawn = places
    dashed = " dashed" if line.dashed else ""
    parts.append(f'<path class="line {colour}{dashed}" d="{_path(places_drawn)}"/>')
    if points:
        for (x, y), x_value, y_value in zip(places, line.x, line.y):
            text = escape(f"{line.name}: {_short(y_value)} at {_short(x_value)}")
            parts.append(
                f'<circle class="point {colour}" cx="{x:.1f}" cy="{y:.1f}"'
                f' r="3.5"><title>{text}</title></circle>'
            )
    return "".join(parts)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


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
