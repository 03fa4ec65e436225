"""How long a step takes: the seam between the simulated executor and whatever knows hardware."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from twostroke.simulator.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a step takes, in seconds.

    Attributes:
        low: Lower end of the interval; ``high`` the upper end.
        binding: What most of the time waits for: ``compute``, ``memory``, ``communication``, ``launch`` or ``host``.
    """

    seconds: float
    low: float
    high: float
    binding: str


class CostModel(Protocol):
    """The seam. ``step`` is pure: the same shape costs the same, always."""

    def step(self, shape: StepShape) -> Estimate: ...
