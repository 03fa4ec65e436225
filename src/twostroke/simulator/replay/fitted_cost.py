"""Step times fitted to a recording, as a cost model."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.questions.replay import RecordedStep, StepTimesFit
from twostroke.simulator.cost.estimate import Estimate
from twostroke.timing.recorded_steps import FittedStepTimes, fit_step_times
from twostroke.timing.step_shape import StepShape


class FittedCost:
    """Implements ``cost.estimate.CostModel``."""

    def __init__(self, times: FittedStepTimes) -> None:
        self._times = times

    def step(self, shape: StepShape) -> Estimate:
        seconds = self._times.seconds(shape)
        return Estimate(seconds, seconds, seconds, "compute" if shape.prefill else "memory")


def fit_cost(steps: Sequence[RecordedStep]) -> tuple[FittedCost, StepTimesFit]:
    """A cost model of the machine that was recorded, and how well it fits.

    Raises:
        ConfigError: Too few steps.
    """
    times = fit_step_times([(shape_of(step), step.seconds) for step in steps])
    rounded = {name: float(f"{value:.4g}") for name, value in times.coefficients.items()}
    return FittedCost(times), StepTimesFit(times.num_steps, times.median_error, rounded)


def shape_of(step: RecordedStep) -> StepShape:
    return StepShape(step.decode_requests, step.decode_context, tuple(step.prefill), step.sampled)
