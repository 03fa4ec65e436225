"""Steps of an engine that only computes prompts, by how many are in a step.

The cost model is asked for one prompt alone, and for as many as the token budget holds; between the
two a step grows evenly. Prompts longer than the budget take several steps.
"""

from __future__ import annotations

from twostroke.planner.steady import MOST_USE, TimeSpread
from twostroke.planner.step_curve import BOUNDS
from twostroke.planner.traffic import Lengths
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.timing.step_shape import StepShape


class PromptCurve:
    """First tokens of an engine without answers.

    Args:
        budget: Tokens of a step at most, of each group of devices with requests of its own.
        groups: How many of those there are.

    Attributes:
        rates: Prompts that it computes in a second at most, by bound.
    """

    def __init__(
        self, cost: RooflineCostModel, lengths: Lengths, budget: int, groups: int = 1
    ) -> None:
        fresh = max(lengths.fresh, 1.0)
        chunk = min(fresh, float(budget))
        self._lengths = lengths
        self._pieces = fresh / chunk
        self._most = max(1.0, groups * (budget // chunk))
        before = lengths.cached + round((fresh - chunk) / 2)
        alone, full = (
            cost.step(StepShape(0, 0, ((round(chunk), before),) * count, count))
            for count in (1, round(self._most))
        )
        self._alone: dict[Bound, float] = {b: getattr(alone, b) for b in BOUNDS}
        self._full: dict[Bound, float] = {b: getattr(full, b) for b in BOUNDS}
        self.rates: dict[Bound, float] = {
            b: self._most / (self._pieces * self._full[b]) for b in BOUNDS
        }

    def load(self, rate: float, bound: Bound) -> float:
        """Part of the prompts that it could compute."""
        return rate / self.rates[bound]

    def first_token(self, rate: float, bound: Bound) -> TimeSpread | None:
        """Waits for the step under way and for prompts before, then is computed with others.

        Returns:
            ``None`` if more come than are computed.
        """
        use = self.load(rate, bound)
        if use >= MOST_USE:
            return None
        lengths, alone, full = self._lengths, self._alone[bound], self._full[bound]
        squares = 1 + lengths.fresh_variance / max(lengths.fresh, 1.0) ** 2
        more = (full - alone) / (self._most - 1) if self._most > 1 else 0.0
        # A step of m prompts takes (alone - more) + more * m, and as many come meanwhile.
        arriving = self._pieces * rate
        together = arriving * (alone - more) / max(1 - arriving * more, 1e-9)
        together = min(max(together, 1.0), self._most)
        step = alone + more * (together - 1)
        own = self._pieces * step
        busy = min(arriving * step / together, 1.0)
        rest = busy * step / 2 * squares
        service = 1 / self.rates[bound]
        queue = use * use * service * squares / (2 * (1 - use))
        slope = alone * self._pieces / max(lengths.fresh, 1.0)
        variance = slope**2 * lengths.fresh_variance
        variance += max(busy * step**2 / 3 * squares - rest**2, 0.0)
        variance += queue**2 * (2 - use) / max(use, 0.1)
        return TimeSpread(own + rest + queue, variance)
