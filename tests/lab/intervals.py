"""Reads the intervals that claims show beside a simulated time."""

from __future__ import annotations

import re

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
NUMBER = r"([\d.]+) (s|ms|us)"


def read_interval(shown: str) -> tuple[float, float]:
    """The ends, in seconds, of ``180 ms (150 ms to 233 ms)``, as shown: to three digits."""
    match = re.search(rf"\({NUMBER} to {NUMBER}\)", shown)
    assert match is not None, shown
    return float(match[1]) * SECONDS[match[2]], float(match[3]) * SECONDS[match[4]]
