"""Time of a layer's experts on one device: their products, each one kernel for all experts.

Tokens are sorted by expert, so each expert has a group of rows. A grouped product deals the output
tiles of all groups out to the compute units, as an ordinary product does with one group
(``gemm``). Three things differ. Weights are read of those experts only that tokens reach. Each
group ends with a partly filled tile, half of one on average, so many small groups waste rows. And
each token's hidden state is copied for each of its experts, and their results are added up: that
goes through memory for all tokens, those whose experts are on other devices included.

The groups need not be equal: what is wasted depends on how many there are, not on their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log, sqrt

from twostroke.simulator.cost.efficiencies import ExpertsEfficiency
from twostroke.simulator.cost.kernel_time import ACTIVATION_BYTES, KernelTime, combine

# Rows and outputs of the tiles that libraries have for grouped products.
GROUPED_TILES = (
    (16, 64),
    (16, 128),
    (32, 128),
    (64, 64),
    (64, 128),
    (64, 256),
    (128, 128),
    (128, 256),
)

# How many times as often as the least popular expert the most popular one is chosen, and into how
# many classes of equal size experts are put by it.
SPREAD, CLASSES = 40.0, 8
_POPULARITY = tuple(SPREAD ** ((place + 0.5) / CLASSES) for place in range(CLASSES))
_MEAN = sum(_POPULARITY) / CLASSES
# Standard deviation of an expert's popularity over the mean.
_DEVIATION = sqrt(sum((each / _MEAN - 1.0) ** 2 for each in _POPULARITY) / CLASSES)


def reached_experts(count: int, per_token: int, tokens: float) -> float:
    """How many of ``count`` experts are chosen by any of these tokens.

    Text does not choose them evenly. Their popularity is taken to be spread evenly over a factor of
    ``SPREAD`` on a logarithmic scale, so the sum over experts of ``1 - (1 - chance)^tokens`` is one
    over classes.
    """
    missed = 0.0
    for popularity in _POPULARITY:
        chance = per_token / count * popularity / _MEAN
        missed += (1.0 - chance) ** tokens if chance < 1.0 else 0.0
    return max(count * (1.0 - missed / CLASSES), min(per_token, count))


def busiest(pairs: float, reached: float, count: int, parts: int) -> tuple[float, float]:
    """Pairs of a token and an expert, and experts that are reached, on the busiest of ``parts``.

    All wait for it. Each has ``count / parts`` experts, rounded up, whose sums of popularity
    differ; the largest of n draws of a normal distribution lies ``0.75 sqrt(2 ln n)`` deviations
    above the mean, within 10 % from 2 to 64.
    """
    if parts == 1:
        return pairs, reached
    own = ceil(count / parts)
    above = 0.75 * sqrt(2.0 * log(parts))
    share = own / count * (1.0 + above * _DEVIATION / sqrt(own))
    mean = reached * own / count
    most = mean + above * sqrt(mean * (1.0 - reached / count))
    return pairs * min(share, 1.0), max(1.0, min(own, most))


class GroupedProducts:
    """The products of one layer's experts, on one device.

    Args:
        sizes: (outputs, inputs) of an expert's products on this device, in their order; the first
            reads the hidden state.
        flops: The device's dense peak, FLOP/s.
        bandwidth: Bytes/s of the device's memory.
        units: The device's compute units.
        weight_bytes: Bytes of one weight.
    """

    def __init__(
        self,
        sizes: Sequence[tuple[int, int]],
        *,
        efficiency: ExpertsEfficiency,
        flops: float,
        bandwidth: float,
        units: int,
        weight_bytes: float,
    ) -> None:
        e = self._efficiency = efficiency
        self._sizes = sizes
        rate = e.compute * flops
        self._bandwidth = e.memory * bandwidth
        self._weight_bytes = weight_bytes
        # A token's copy for one of its experts, through memory.
        self._copy = e.moves * ACTIVATION_BYTES * sizes[0][1] / bandwidth
        # By product: (rows of a tile, tiles of a row of them over units, seconds of a tile).
        self._tiles = [
            [
                (
                    rows,
                    ceil(outputs / width) / units,
                    2.0 * (rows * width + e.half_tile) * units / rate * (inputs + e.prologue),
                )
                for rows, width in GROUPED_TILES
            ]
            for outputs, inputs in sizes
        ]

    def time(self, pairs: float, distinct: float, copies: float | None = None) -> KernelTime:
        """Time for ``pairs`` of a token and one of ``distinct`` experts on this device.

        Args:
            copies: Pairs over all devices that see the same tokens; by default ``pairs``.
        """
        e = self._efficiency
        moved = self._copy * (pairs if copies is None else copies)
        compute, memory = 0.0, moved
        for (outputs, inputs), tiles in zip(self._sizes, self._tiles):
            weights = self._weight_bytes * distinct * outputs * inputs
            passed = ACTIVATION_BYTES * pairs * (outputs + inputs)
            product = combine(
                self._compute(tiles, pairs, distinct),
                (weights + passed) / self._bandwidth,
                0.0,
                e.sharpness,
            )
            compute, memory = compute + product.compute, memory + product.memory
        return KernelTime(compute + memory + e.launch, compute, memory, e.launch)

    def _compute(
        self, tiles: Sequence[tuple[int, float, float]], pairs: float, distinct: float
    ) -> float:
        """The fastest tile's time, with half a tile of each group empty."""
        partial, least = self._efficiency.waves, float("inf")
        half = distinct / 2
        for rows, across, seconds in tiles:
            groups = pairs / rows + half
            full = (groups if groups > distinct else distinct) * across
            waves = partial * ceil(full) + (1.0 - partial) * (full if full > 1.0 else 1.0)
            time = waves * seconds
            least = time if time < least else least
        return least
