"""A claim of the field, and what an experiment says of it: values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from twostroke.lab.live import LiveBench

VerdictName = Literal["holds", "holds with a condition", "wrong as stated"]


class Verdict(NamedTuple):
    """Whether a claim is true; ``text`` says under which condition, or what is right."""

    name: VerdictName
    text: str


class Fact(NamedTuple):
    """A line of an experiment: what was looked at, and what came out."""

    what: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A plot of lines by name. ``limit`` is what the claim says, as a line across."""

    curves: Mapping[str, Sequence[tuple[float, float]]]
    x_title: str
    y_title: str
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A plot of values by name."""

    values: Sequence[tuple[str, float]]
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What arithmetic and the simulator say of a claim.

    Attributes:
        on: Models and hardware.
        figures: The numbers behind facts and verdict, by name; times in seconds.
    """

    on: str
    facts: Sequence[Fact]
    verdict: Verdict
    plot: Curves | Bars
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What this machine did.

    Attributes:
        facts: What was measured.
        text: What it says of the claim.
    """

    facts: Sequence[Fact]
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldClaim:
    """One claim.

    Attributes:
        name: What ``twostroke lab`` takes.
        text: What is claimed.
        source: Where the field says so, in a line.
        compute: Arithmetic and simulation; the same each time.
        observe: A short live run, some seconds long.
    """

    name: str
    text: str
    source: str
    compute: Callable[[], Computed]
    observe: Callable[[LiveBench], Observed]


def judge_range(value: float, low: float, high: float) -> VerdictName:
    """Whether a value is within the claimed range, to a tenth."""
    return "holds" if 0.9 * low <= value <= 1.1 * high else "wrong as stated"


def judge_all(values: Sequence[float], low: float, high: float) -> VerdictName:
    """Whether all values are within the claimed range (to a tenth), some of them, or none."""
    inside = [judge_range(value, low, high) == "holds" for value in values]
    if all(inside):
        return "holds"
    return "holds with a condition" if any(inside) else "wrong as stated"
