"""Weighted counts over the last 1, 5 and 60 minutes, in bounded memory. Pure: time is passed in.

A window is made of 60 slots and ends with the slot that the present moment is in: it is exact for
what it covers, which is its length but for at most one slot. Times and weights are integers, so
that what leaves a window takes away just what it brought.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

NUM_SLOTS = 60
WINDOW_SECONDS = (60, 300, 3600)
MICROSECONDS = 1_000_000


class SlidingWindow:
    """Counts by key over the last ``seconds``, a multiple of 60.

    Attributes:
        totals: The count of each key that is in the window.
    """

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.totals: dict[int, int] = {}
        self._slot_seconds = seconds // NUM_SLOTS
        self._slots: deque[tuple[int, dict[int, int]]] = deque()

    def add(self, second: int, counts: Mapping[int, int]) -> None:
        """Count what happened in ``second``, which never falls."""
        number = second // self._slot_seconds
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
            self.advance(second)
        slot, totals = self._slots[-1][1], self.totals
        for key, count in counts.items():
            slot[key] = slot.get(key, 0) + count
            totals[key] = totals.get(key, 0) + count

    def advance(self, second: int) -> None:
        """Drop what the window has left behind."""
        oldest = second // self._slot_seconds - NUM_SLOTS
        while self._slots and self._slots[0][0] <= oldest:
            for key, count in self._slots.popleft()[1].items():
                self.totals[key] -= count
                if not self.totals[key]:
                    del self.totals[key]


class SlidingWindows:
    """Counts over windows of several lengths.

    What happens in one second is collected first: a step costs one addition.
    """

    def __init__(self) -> None:
        self.windows = tuple(SlidingWindow(seconds) for seconds in WINDOW_SECONDS)
        self._second = 0
        self._latest: dict[int, int] = {}

    def add(self, second: int, key: int, count: int = 1) -> None:
        """Count ``key`` in ``second``; an earlier one than the latest counts as the latest."""
        if second > self._second:
            self.advance(second)
        self._latest[key] = self._latest.get(key, 0) + count

    def advance(self, second: int) -> None:
        """Bring the windows up to ``second``: they then hold all that was added."""
        if self._latest:
            for window in self.windows:
                window.add(self._second, self._latest)
            self._latest = {}
        self._second = max(self._second, second)
        for window in self.windows:
            window.advance(self._second)


class HeldValue:
    """Counts for how many microseconds a state had each value; it holds until the next one.

    Args:
        windows: Where the microseconds are counted.
    """

    def __init__(self, windows: SlidingWindows) -> None:
        self._windows = windows
        self._longest = max(window.seconds for window in windows.windows)
        self._since: int | None = None
        self._key = 0

    def set(self, microseconds: int, key: int) -> None:
        """The state is ``key`` from this moment on."""
        self.hold(microseconds)
        self._key = key
        if self._since is None:
            self._since = microseconds

    def hold(self, microseconds: int) -> tuple[int, int]:
        """Count the present value up to this moment; returns for how long it was held, and it."""
        begin = self._since
        if begin is None or microseconds <= begin:
            return 0, self._key
        self._since, held = microseconds, microseconds - begin
        # Nothing older can be in a window.
        begin = max(begin, (microseconds // MICROSECONDS - self._longest) * MICROSECONDS)
        while begin < microseconds:
            second = begin // MICROSECONDS
            end = min(microseconds, (second + 1) * MICROSECONDS)
            self._windows.add(second, self._key, end - begin)
            begin = end
        return held, self._key
