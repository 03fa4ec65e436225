"""How figures are written."""

from __future__ import annotations


def shown_time(seconds: float) -> str:
    """``1.23 s``, ``45.6 ms`` or ``789 us``."""
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


def shown_range(seconds: float, low: float, high: float) -> str:
    """A time with its interval."""
    return f"{shown_time(seconds)} ({shown_time(low)} to {shown_time(high)})"


def shown_times(ratio: float) -> str:
    """``2.43 times``; more digits mean nothing."""
    return f"{ratio:.3g} times"
