"""How long something takes, by size, from its latest readings: none of them counts alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from math import ceil

from twostroke.timing.mean_times import rounded_size

# Readings kept of each size, and how many make it known: the first are slow where they set
# something up, and any may be held up by chance.
KEPT_READINGS, KNOWN_FROM = 9, 3
# A reading weighs half as much after ``HALF_LIFE`` steps, so that others take its place the sooner.
# Readings of ``SAME_AGE`` steps weigh alike.
HALF_LIFE, SAME_AGE = 128, 32
# Half-lives that readings age by when they are doubted: nine of them weigh less than a new one.
DOUBTED = 4
# The time is that below which this share of the weight lies: what holds a step up is chance, so it
# keeps low. One reading of three, and six of nine, may be as long as they like.
LOW_SHARE = 0.3


class RecentTimes:
    """A low quantile of the latest readings of each size, interpolated between sizes.

    Args:
        counts_from: This many readings of one size say something of it, once any size has as many.
    """

    def __init__(self, counts_from: int = 1) -> None:
        self._counts_from = counts_from
        self._sizes: dict[int, _Size] = {}
        self._keys: list[int] = []
        self._counting: list[int] = []

    @property
    def largest(self) -> int:
        """The largest size that counts, rounded; 0 before the first."""
        keys = self._counting or self._keys
        return keys[-1] if keys else 0

    def num_readings(self, size: int) -> int:
        """How many readings of about this size are kept."""
        readings = self._sizes.get(rounded_size(size))
        return readings.count if readings is not None else 0

    def add(self, size: int, seconds: float, step: int) -> None:
        """Take in a reading of ``step``; steps do not fall."""
        key = rounded_size(size)
        if key not in self._sizes:
            self._sizes[key] = _Size()
            insort(self._keys, key)
        readings = self._sizes[key]
        readings.add(size, max(seconds, 1e-9), step)
        if readings.count == self._counts_from and key not in self._counting:
            insort(self._counting, key)

    def doubt(self, above: int = 0) -> None:
        """Have one new reading outweigh those that there are, of sizes above ``above``."""
        for readings in self._sizes.values():
            if readings.size > above:
                readings.age(DOUBTED)

    def at(self, size: int, *, proportional: bool = False) -> float:
        """Seconds at ``size``, between those of its neighbours; 0 before the first.

        Args:
            proportional: Beyond those that count, to either side, the time grows with the size;
                else it stays.
        """
        keys = self._counting or self._keys
        if not keys:
            return 0.0
        place = bisect_left(keys, rounded_size(size))
        below = self._sizes[keys[max(place - 1, 0)]]
        above = self._sizes[keys[min(place, len(keys) - 1)]]
        if below.size < size < above.size:
            share = (size - below.size) / (above.size - below.size)
            return below.seconds * (1 - share) + above.seconds * share
        return above.seconds * (size / above.size if proportional else 1.0)


class _Size:
    """The latest readings of about one size.

    Attributes:
        size: Size of the reading that counts.
        seconds: What it took, the low quantile. Both change with readings only, since all weights
            fall alike.
    """

    def __init__(self) -> None:
        self.size, self.seconds = 0, 0.0
        self._readings: deque[tuple[float, int, int]] = deque(maxlen=KEPT_READINGS)

    @property
    def count(self) -> int:
        return len(self._readings)

    def add(self, size: int, seconds: float, step: int) -> None:
        self._readings.append((seconds, size, step))
        if step - self._readings[0][2] <= SAME_AGE:  # most often: a step is not to wait for more
            place = ceil(LOW_SHARE * len(self._readings)) - 1
            self.seconds, self.size, _ = sorted(self._readings)[place]
            return
        weights = [0.5 ** ((step - taken) / HALF_LIFE) for _, _, taken in self._readings]
        left = LOW_SHARE * sum(weights)
        for reading, weight in sorted(zip(self._readings, weights)):
            self.seconds, self.size, _ = reading
            left -= weight
            if left <= 0:
                break

    def age(self, half_lives: int) -> None:
        aged = [
            (seconds, size, step - half_lives * HALF_LIFE) for seconds, size, step in self._readings
        ]
        self._readings.clear()
        self._readings.extend(aged)
