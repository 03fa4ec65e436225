"""How many requests each replica of a large fleet has, without asking each of them."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np


class RequestCounts:
    """Unfinished requests of all replicas at one moment, which only moves forward.

    Counting at every arrival what each of 1,000 replicas has would take longer than all their
    steps. So replicas tell what comes and when it ends, which may be ahead of the moment.
    """

    def __init__(self, num_replicas: int) -> None:
        self._counts = np.zeros(num_replicas, dtype=np.int64)
        self._ends: list[tuple[float, int]] = []  # a heap: of requests that are still counted

    def note(self, replica: int, num_added: int, ends: Sequence[float]) -> None:
        """Some requests have come to a replica, and others end there at these times."""
        self._counts[replica] += num_added
        for time in ends:
            heapq.heappush(self._ends, (time, replica))

    def move_to(self, now: float) -> None:
        """Count no more what has ended by then."""
        while self._ends and self._ends[0][0] <= now:
            self._counts[heapq.heappop(self._ends)[1]] -= 1

    def __getitem__(self, replica: int) -> int:
        return int(self._counts[replica])

    def least(self) -> int:
        """The replica with the fewest, the first of several."""
        return int(self._counts.argmin())
