"""What experiments may say of a claim, and what figures say of one that names a range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

VerdictName = Literal["holds", "holds with a condition", "wrong as stated"]


def judge_range(value: float, low: float, high: float) -> VerdictName:
    """Whether a value is within the claimed range, to a tenth."""
    return "holds" if 0.9 * low <= value <= 1.1 * high else "wrong as stated"


def judge_all(values: Sequence[float], low: float, high: float) -> VerdictName:
    """Whether all values are within the claimed range (to a tenth), some of them, or none."""
    inside = [judge_range(value, low, high) == "holds" for value in values]
    if all(inside):
        return "holds"
    return "holds with a condition" if any(inside) else "wrong as stated"
