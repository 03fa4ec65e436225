"""The highest rate that meets the targets: doubling and halving, then bisection of the ratio."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from twostroke.core.errors import ConfigError
from twostroke.simulator.results.summary import Summary

# Share of requests that meet every target (DistServe, OSDI 2024, section 6: goodput is the highest
# rate at which nine of ten requests meet both).
ATTAINMENT = 0.9
# The rate found is at most this much below one that does not meet them.
PRECISION = 0.02
LOWEST, HIGHEST = 1e-4, 1e5
# A workload that is too short to tell is made this much longer at most.
MOST_TIMES_LONGER = 64


def meets_all(summarize: Callable[[int], Summary]) -> bool:
    """Whether a rate is kept up with, and enough of all its requests meet every target.

    Args:
        summarize: Simulates the rate on this many times the usual number of requests.

    Raises:
        ConfigError: Even the longest workload is too short to tell.
    """
    longer = 1
    while (summary := summarize(longer)).steady.verdict == "undecided":
        longer *= 2
        if longer > MOST_TIMES_LONGER:
            raise ConfigError(
                "the workload is too short to tell whether a rate can be kept up with",
                hint="give more --num-requests, or a longer trace",
            )
    if summary.steady.verdict == "overloaded" or summary.good_share is None:
        return False
    came = summary.completed + summary.refused + summary.refused_early
    return summary.completed * summary.good_share >= ATTAINMENT * came


def find_rate(meets: Callable[[float], bool], start: float) -> tuple[float, float]:
    """The highest rate that ``meets``, and one within ``PRECISION`` above it that does not.

    Args:
        meets: Simulates a rate, in requests per second; false from some rate on.
        start: The first rate that is tried.

    Raises:
        ConfigError: Not even ``LOWEST`` meets the targets, or even ``HIGHEST`` does.
    """
    if meets(start):
        low, high = start, 2 * start
        while meets(high):
            low, high = high, 2 * high
            if high > HIGHEST:
                raise ConfigError(
                    f"even {low:g} requests/s meet the targets", hint="give a longer workload"
                )
    else:
        low, high = start / 2, start
        while not meets(low):
            low, high = low / 2, low
            if low < LOWEST:
                raise ConfigError(
                    f"no rate meets the targets, not even {high:g} requests/s",
                    hint="give targets that a request alone can meet, or faster hardware",
                )
    while high / low > 1 + PRECISION:
        middle = sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low, high
