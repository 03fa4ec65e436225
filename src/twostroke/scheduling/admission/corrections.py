"""What calls that were let in truly waited for a place, against what was expected."""

from __future__ import annotations

from typing import NamedTuple

# Share of earlier calls in both sums after each new one.
KEPT = 0.9
# What is expected is corrected by no more than this: a burst or a pause says little of the next.
LOWEST, HIGHEST = 1 / 16, 4.0
# Seconds in both sums from the start, so that the first call alone decides little.
PRIOR = 0.1


class _Sums(NamedTuple):
    waited: float = PRIOR
    expected: float = PRIOR


class Corrections:
    """Factors of expected waits, one for each tenant: policies let some wait less than others."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sums] = {}

    def of(self, tenant: str) -> float:
        """The factor, in [``LOWEST``, ``HIGHEST``]; 1 for a tenant of which nothing is known."""
        sums = self._sums.get(tenant, _Sums())
        return max(LOWEST, min(sums.waited / sums.expected, HIGHEST))

    def add(self, tenant: str, waited: float, expected: float) -> None:
        """Take in the wait of a call, in seconds, and what was expected of it, uncorrected."""
        sums = self._sums.get(tenant, _Sums())
        self._sums[tenant] = _Sums(
            KEPT * sums.waited + waited, max(KEPT * sums.expected + expected, 1e-9)
        )
