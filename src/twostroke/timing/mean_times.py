"""How long something takes, by size: means that follow changes, interpolated between sizes."""

from __future__ import annotations

from bisect import bisect_left, insort

# Share of a new measurement in the mean, if it is longer and if it is shorter; and how many times
# longer it may be and still count whole. What holds a step up is chance, so the mean keeps low.
WEIGHT_LONGER, WEIGHT_SHORTER, MAX_RATIO = 0.1, 0.3, 2.0
# Larger sizes are told apart by their first three bits.
EXACT_UP_TO = 8


class MeanTimes:
    """Mean seconds by rounded size, each with the mean of the sizes themselves."""

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._means: dict[int, tuple[float, float]] = {}
        self._measured_once: set[int] = set()

    def add(self, size: int, seconds: float) -> None:
        key, seconds = rounded_size(size), max(seconds, 1e-9)
        if key not in self._means:
            insort(self._keys, key)
            self._means[key] = float(size), seconds
            self._measured_once.add(key)
            return
        mean_size, mean = self._means[key]
        if key in self._measured_once and seconds < mean:  # the first was held up
            weight = 1.0
        else:
            weight = weight_of(seconds, mean)
        self._measured_once.discard(key)
        self._means[key] = mean_size + weight * (size - mean_size), follow(mean, seconds, weight)

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


def weight_of(seconds: float, mean: float) -> float:
    """Share of a new measurement in the mean."""
    return WEIGHT_SHORTER if seconds < mean else WEIGHT_LONGER


def follow(mean: float, seconds: float, weight: float) -> float:
    """The mean with a new measurement."""
    return mean + weight * (min(seconds, mean * MAX_RATIO) - mean)


def rounded_size(size: int) -> int:
    """``size`` up to 8, then the next of 10, 12, 14, 16, 20, 24, 28, 32, 40 ..."""
    if size <= EXACT_UP_TO:
        return size
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step
