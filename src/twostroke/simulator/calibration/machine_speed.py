"""How fast a machine is at the moment, and whether two such speeds agree.

Two virtual cores may share a physical one with another virtual machine. Then the same work takes
up to 1.7 times as long, for seconds, and no counter inside the machine shows it. A probe of known
work does. Measurements are compared only with others at the same speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import harmonic_mean, median
from typing import NamedTuple

# Two speeds agree if they are no further apart than this.
SAME = 0.10


class Speed(NamedTuple):
    """What a probe measured.

    Attributes:
        flops: FLOP/s of a matrix product.
        bandwidth: Bytes/s of a copy, read and written.
        held: Whether the machine kept this speed long enough to be measured at it; else the values
            are averages.
    """

    flops: float
    bandwidth: float
    held: bool = True

    def apart(self, other: Speed) -> float:
        """The larger over the smaller less 1, of FLOP/s or bytes/s, whichever differs more."""
        pairs = (self.flops, other.flops), (self.bandwidth, other.bandwidth)
        return max(max(pair) / min(pair) - 1 for pair in pairs)

    def agrees(self, other: Speed) -> bool:
        """Whether both count as the same speed."""
        return self.apart(other) <= SAME


# What ``runtime.speed_probe`` makes: the fields of a ``Speed``.
Probe = Callable[[], tuple[float, float]]


def usual(speeds: Sequence[Speed]) -> Speed:
    """The median of each kind."""
    return Speed(
        median(speed.flops for speed in speeds), median(speed.bandwidth for speed in speeds)
    )


def average(speeds: Sequence[Speed]) -> Speed:
    """The speed at which the probe's work takes its average time; for when none held."""
    flops = harmonic_mean([speed.flops for speed in speeds])
    return Speed(flops, harmonic_mean([speed.bandwidth for speed in speeds]), held=False)
