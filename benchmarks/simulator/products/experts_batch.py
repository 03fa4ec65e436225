"""``simulator.cost.experts_cost`` over many rows at once, and what was routed where in them.

A test holds the two equal. How loads were drawn is the measurement's: each expert's is a power law
between 1 and 0.8 times the tokens, scaled to what there is to share. So a closed form says how many
experts get any, and how much more than its share the busiest device has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.products.rows import ExpertsRow
from twostroke.model_spec.number_formats import weight_format
from twostroke.simulator.cost.experts_cost import GROUPED_TILES
from twostroke.simulator.cost.hardware_sheet import HardwareSheet

Array = NDArray[np.floating[Any]]
# Below so many tokens the power law has nothing to spread over.
FEW_TOKENS = 16


class ExpertsBatch:
    """Experts of rows, each on its device, as arrays of ``[rows]``."""

    def __init__(self, rows: Sequence[tuple[ExpertsRow, HardwareSheet]]) -> None:
        def column(name: str) -> Array:
            return np.array([getattr(row, name) for row, _ in rows], float)

        self.measured, self.tokens = column("seconds"), column("tokens")
        self.hidden, self.inner = column("hidden"), column("inner") / column("tensor")
        self.copies = self.tokens * column("per_token")
        formats = [weight_format(row.format) for row, _ in rows]
        self.weight_bytes = np.array([each.bits / 8 for each in formats])
        self.flops = np.array(
            [
                hardware.dense_flops[hardware.compute_format(each.compute)]
                for each, (_, hardware) in zip(formats, rows)
            ]
        )
        self.bandwidth = np.array([hardware.memory_bandwidth for _, hardware in rows])
        self.units = np.array([hardware.compute_units for _, hardware in rows], float)
        self.pairs, self.distinct = routed(
            self.tokens, column("per_token"), column("count"), column("expert"), column("skew")
        )

    def seconds(self, e: Mapping[str, float]) -> Array:
        """Time of every row under the coefficients of ``ExpertsEfficiency``."""
        copied = e["moves"] * 2.0 * self.hidden * self.copies / self.bandwidth
        up = self._product(e, 2.0 * self.inner, self.hidden)
        total: Array = up + self._product(e, self.hidden, self.inner) + copied + e["launch"]
        return total

    def _product(self, e: Mapping[str, float], outputs: Array, inputs: Array) -> Array:
        rate = 2.0 * self.units / (e["compute"] * self.flops)
        compute = np.full_like(self.tokens, np.inf)
        for rows, width in GROUPED_TILES:
            groups = np.maximum(self.pairs / rows + self.distinct / 2, self.distinct)
            full = groups * (np.ceil(outputs / width) / self.units)
            waves = e["waves"] * np.ceil(full) + (1 - e["waves"]) * np.maximum(full, 1.0)
            time = waves * (rows * width + e["half_tile"]) * rate * (inputs + e["prologue"])
            np.minimum(compute, time, out=compute)
        weights = self.weight_bytes * self.distinct * outputs * inputs
        passed = 2.0 * self.pairs * (outputs + inputs)
        memory = (weights + passed) / (e["memory"] * self.bandwidth)
        p = e["sharpness"]
        longer, shorter = np.maximum(compute, memory), np.minimum(compute, memory)
        total: Array = longer * (1.0 + (shorter / longer) ** p) ** (1.0 / p)
        return total

    def loss(self, e: Mapping[str, float]) -> float:
        """Mean of ``|log(estimated / measured)|``."""
        return float(np.mean(np.abs(np.log(self.seconds(e) / self.measured))))


def routed(
    tokens: Array, per_token: Array, count: Array, parts: Array, skew: Array
) -> tuple[Array, Array]:
    """(pairs of a token and an expert, distinct experts) on the busiest of ``parts`` devices."""
    share = tokens * per_token / parts
    equal = np.minimum(count / parts, np.maximum(share, 1.0))
    pairs, distinct = np.maximum(share, 1.0), equal
    for exponent in np.unique(skew[skew > 0]):
        reached, spread = _power_law(tokens, per_token, count, exponent)
        mean = reached / parts
        # The largest of n draws of a normal distribution lies about this far above its mean.
        above = 0.75 * np.sqrt(2.0 * np.log(np.maximum(parts, 1.0)))
        deviation = np.sqrt(mean * np.maximum(1.0 - reached / count, 0.0))
        most = np.minimum(count / parts, np.maximum(tokens * per_token, 1.0))
        of_law = np.clip(mean + above * deviation, 1.0, most)
        busiest = np.minimum(1.0 + spread / np.sqrt(count / parts) * above, parts)
        with_law = np.minimum(np.maximum(share * busiest, of_law), tokens * per_token)
        chosen = skew == exponent
        distinct = np.where(chosen, of_law, distinct)
        pairs = np.where(chosen, with_law, pairs)
    return pairs, distinct


def _power_law(
    tokens: Array, per_token: Array, count: Array, exponent: float
) -> tuple[Array, Array]:
    """(experts that get tokens, standard deviation of a load over its mean)."""
    largest, power = np.maximum(0.8 * tokens, 1.0001), 1.0 - exponent
    area = (largest**power - 1.0) / power
    mean = (largest ** (power + 1) - 1.0) / (power + 1) / area
    square = (largest ** (power + 2) - 1.0) / (power + 2) / area
    # A load is rounded to whole tokens: half of one is the least that is one.
    least = np.clip(0.5 * mean * count / (per_token * tokens), 1.0, largest)
    reached = count * (1.0 - (least**power - 1.0) / (largest**power - 1.0))
    pairs = tokens * per_token
    few = np.minimum(pairs, count) * (1.0 - tokens / (4.0 * FEW_TOKENS))
    reached = np.where(tokens >= FEW_TOKENS, reached, few)
    reached = np.clip(reached, np.minimum(per_token, count), np.minimum(count, pairs))
    return reached, np.sqrt(np.maximum(square / mean**2 - 1.0, 0.0))
