"""Values as whole numbers that sort as the values do, so that a window can count them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.core.targets import TargetMetric

GROWTH = math.log(1.01)  # seconds are told apart to one percent
FINEST, COARSEST = 1e-6, 1e6
MAX_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How values of one metric are counted.

    Attributes:
        level: The whole number of a value; at most some thousand different ones.
        value: The largest value of a level.
    """

    level: Callable[[float], int]
    value: Callable[[int], float]


def _seconds_level(seconds: float) -> int:
    return math.ceil(math.log(min(max(seconds, FINEST), COARSEST)) / GROWTH)


def _share_level(share: float) -> int:
    return math.ceil(min(max(share, 0.0), 1.0) * 1000)


SECONDS = Scale(_seconds_level, lambda level: math.exp(level * GROWTH))
SHARES = Scale(_share_level, lambda level: level / 1000)
COUNTS = Scale(lambda count: min(int(count), MAX_COUNT), float)
FAILURES = Scale(int, float)

SCALES: dict[TargetMetric, Scale] = {
    "ttft": SECONDS,
    "tpot": SECONDS,
    "e2el": SECONDS,
    "errors": FAILURES,
    "kv": SHARES,
    "queue": COUNTS,
}
