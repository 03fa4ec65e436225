"""How long passes take, by size, learned from steps that were taken."""

from __future__ import annotations

from bisect import bisect_left, insort

# Share of a new measurement in the mean, if it is longer and if it is shorter; and how many times
# longer it may be and still count whole. What holds a step up is chance, so the mean keeps low.
WEIGHT_LONGER, WEIGHT_SHORTER, MAX_RATIO = 0.1, 0.3, 2.0
# Larger sizes are told apart by their first three bits.
EXACT_UP_TO = 8


class PassTimes:
    """Means that follow changes, interpolated between sizes. Unknown sizes cost what near ones do,
    so that they are tried.

    Attributes:
        num_draftings: How often the time of drafting was measured.
    """

    def __init__(self) -> None:
        self._passes = _Means()

    @property
    def has_passes(self) -> bool:
        """Whether any was measured."""
        return self.largest_pass > 0

    @property
    def largest_pass(self) -> int:
        """Rows of the largest that was measured; 0 before the first."""
        return self._passes.largest

    def add_pass(self, rows: int, seconds: float) -> None:
        self._passes.add(rows, seconds)

    def of_pass(self, rows: int) -> float:
        """Seconds of a pass over ``rows`` tokens, each in a request that decodes."""
        return self._passes.at(rows) or 1.0


class _Means:
    """Mean seconds by rounded size, each with the mean of the sizes themselves."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._means: dict[int, tuple[float, float]] = {}
        self._measured_once: set[int] = set()

    @property
    def largest(self) -> int:
        return self._keys[-1] if self._keys else 0

    def add(self, size: int, seconds: float) -> None:
        key, seconds = rounded_size(size), max(seconds, 1e-9)
        if key not in self._means:
            insort(self._keys, key)
            self._means[key] = float(size), seconds
            self._measured_once.add(key)
            return
        mean_size, mean = self._means[key]
        weight = WEIGHT_SHORTER if seconds < mean else WEIGHT_LONGER
        if key in self._measured_once:
            self._measured_once.remove(key)
            weight = 1.0 if seconds < mean else weight  # the first was held up
        change = min(seconds, mean * MAX_RATIO) - mean
        self._means[key] = mean_size + weight * (size - mean_size), mean + weight * change

    def at(self, size: int) -> float:
        """The mean at ``size``, between those of its neighbours; 0 before the first."""
        if not self._keys:
            return 0.0
        place = bisect_left(self._keys, rounded_size(size))
        below = self._means[self._keys[max(place - 1, 0)]]
        above = self._means[self._keys[min(place, len(self._keys) - 1)]]
        if below[0] < size < above[0]:
            share = (size - below[0]) / (above[0] - below[0])
            return below[1] * (1 - share) + above[1] * share
        return above[1]


def rounded_size(size: int) -> int:
    """``size`` up to 8, then the next of 10, 12, 14, 16, 20, 24, 28, 32, 40 ..."""
    if size <= EXACT_UP_TO:
        return size
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step
