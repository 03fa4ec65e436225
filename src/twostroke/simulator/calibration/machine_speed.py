"""How fast a machine is just now, and whether that is as fast as it was another time.

Two virtual cores may share a physical one with somebody unseen: then the same work takes up to 1.7
times as long, for seconds, and no counter inside the machine says so. A probe of known work does.
What was measured at one speed is compared only with what was measured at the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import harmonic_mean, median
from typing import NamedTuple

# Two speeds that are no further apart count as the same.
SAME = 0.10


class Speed(NamedTuple):
    """What a probe found: FLOP/s of a matrix product, bytes/s of a copy (read and written).

    ``held``: whether the machine kept to it for long enough to be measured at it; if not, it is an
    average.
    """

    flops: float
    bandwidth: float
    held: bool = True

    def apart(self, other: Speed) -> float:
        """How far the two are from each other, the larger over the smaller less 1, in what differs
        most.
        """
        pairs = (self.flops, other.flops), (self.bandwidth, other.bandwidth)
        return max(max(pair) / min(pair) - 1 for pair in pairs)

    def agrees(self, other: Speed) -> bool:
        return self.apart(other) <= SAME


# What ``runtime.speed_probe`` makes: the fields of a ``Speed``.
Probe = Callable[[], tuple[float, float]]


def usual(speeds: Sequence[Speed]) -> Speed:
    """The median of each kind."""
    return Speed(
        median(speed.flops for speed in speeds), median(speed.bandwidth for speed in speeds)
    )


def average(speeds: Sequence[Speed]) -> Speed:
    """The speed at which known work would take as long as it did on average, where none held."""
    flops = harmonic_mean([speed.flops for speed in speeds])
    return Speed(flops, harmonic_mean([speed.bandwidth for speed in speeds]), held=False)
