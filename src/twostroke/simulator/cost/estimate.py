"""The seam between the simulated executor and what knows the hardware: estimates of steps."""

from __future__ import annotations

from typing import Protocol

import msgspec

from twostroke.timing.step_shape import StepShape


class Estimate(msgspec.Struct, frozen=True):
    """How long a step takes, in seconds.

    Attributes:
        low: Lower end of the interval.
        high: Upper end of the interval.
        binding: What most of the time waits for: ``compute``, ``memory``, ``communication``,
            ``launch`` or ``host``.
        drafting: How much of ``seconds`` goes into drafts for the next step.
    """

    seconds: float
    low: float
    high: float
    binding: str
    drafting: float = 0.0


class CostModel(Protocol):
    """Estimates how long a step takes."""

    def step(self, shape: StepShape) -> Estimate:
        """The duration of a step. Pure: equal shapes have equal estimates."""
        ...
