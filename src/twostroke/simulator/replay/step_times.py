"""A cost model fitted to recorded steps alone: it needs no model, no sheet, no calibration.

A step takes what the host needs, the longer of reading the weights and multiplying with them (as a
sum of powers, so that there is no edge), and attention over cached tokens:

    step + request * requests + (weights^s + (token * tokens)^s)^(1/s)
         + context * cached tokens read by decodes + pair * pairs of prompt tokens + chunk * chunks

The roofline of ``cost/cost_model.py`` with the sizes of model and machine folded into seven
numbers. It knows nothing beyond the range of what was recorded: a batch ten times as large is an
extrapolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from twostroke.core.errors import ConfigError
from twostroke.inspector.compare.messages import RecordedStep, StepTimesFit
from twostroke.simulator.calibration.fitting import Space, least_deviations
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.cost.step_shape import StepShape

Columns = npt.NDArray[np.float64]
# Mean error that a fit must gain to move a coefficient by a factor of e from its start.
PULL = 0.001
STARTS = 3
MIN_STEPS = 8
MAX_STEPS = 2000
# A token that attends to another costs this share of a token that passes the weights, about: one
# over three times the width of a small model. Only where the steps do not tell.
OF_A_TOKEN = 1 / 2000


class FittedStepTimes:
    """Implements ``cost.estimate.CostModel``."""

    def __init__(self, coefficients: Mapping[str, float]) -> None:
        self.coefficients = dict(coefficients)

    def step(self, shape: StepShape) -> Estimate:
        row = _sizes(shape.decode_requests, shape.decode_context, shape.prefill, shape.sampled)
        seconds = float(_seconds(np.array([row]), self.coefficients)[0])
        binding = "compute" if shape.prefill else "memory"
        return Estimate(seconds, seconds, seconds, binding)


def fit_step_times(steps: Sequence[RecordedStep]) -> tuple[FittedStepTimes, StepTimesFit]:
    """The coefficients with the least error on recorded steps, and how large that is.

    Steps that decode, that prefill and that do both have the same weight together, since there are
    far more of the first. Of many steps, each so many is taken. What other programs add to some of
    them is not in it (``machine_speed``).

    Raises:
        ConfigError: Too few steps.
    """
    steps = [step for step in steps if step.seconds > 0]
    if len(steps) < MIN_STEPS:
        raise ConfigError(
            f"only {len(steps)} steps are recorded; step times need at least {MIN_STEPS}",
            hint="choose a longer range",
        )
    steps = steps[:: -(-len(steps) // MAX_STEPS)]
    sizes = np.array(
        [
            _sizes(step.decode_requests, step.decode_context, step.prefill, step.sampled)
            for step in steps
        ]
    )
    measured = np.array([step.seconds for step in steps])
    space = _space(sizes, measured)

    def errors(values: dict[str, float]) -> list[float]:
        logs: list[float] = np.log(_seconds(sizes, values) / measured).tolist()
        return logs

    kinds = [(bool(step.prefill), bool(step.decode_requests)) for step in steps]
    counts = Counter(kinds)
    shares = [1 / (len(counts) * counts[kind]) for kind in kinds]
    values = least_deviations(errors, shares, space, pull=PULL, starts=STARTS).values
    error = np.abs(_seconds(sizes, values) / measured - 1)
    return FittedStepTimes(values), StepTimesFit(
        len(steps), float(np.median(error)), {name: float(f"{v:.4g}") for name, v in values.items()}
    )


def _sizes(
    decode_requests: int, decode_context: int, prefill: Sequence[tuple[int, int]], sampled: int
) -> tuple[float, ...]:
    """What the formula counts of a step: requests, tokens, context, pairs, chunks."""
    new = sum(chunk for chunk, _ in prefill)
    pairs = sum(chunk * before + chunk * (chunk + 1) / 2 for chunk, before in prefill)
    requests = decode_requests + len(prefill)
    return (requests, decode_requests + new, decode_context, pairs, len(prefill))


def _seconds(sizes: Columns, values: Mapping[str, float]) -> Columns:
    requests, tokens, context, pairs, chunks = sizes.T
    s = values["sharpness"]
    passing = (values["weights"] ** s + (values["token"] * tokens) ** s) ** (1 / s)
    seconds: Columns = (
        values["step"]
        + values["request"] * requests
        + passing
        + values["context"] * context
        + values["pair"] * pairs
        + values["chunk"] * chunks
    )
    return seconds


def _space(sizes: Columns, measured: Columns) -> Space:
    """Where the descent starts, and bounds: from the shortest steps and those with most tokens."""
    tokens = sizes[:, 1]
    least = float(np.percentile(measured, 5))
    many = tokens >= np.percentile(tokens, 90)
    token = float(np.median(measured[many] / np.maximum(tokens[many], 1)))
    starts = {
        "step": (0.1 * least, 1e-3 * least, 2 * least),
        "request": (0.01 * least, 1e-6 * least, least),
        "weights": (0.8 * least, 1e-3 * least, 2 * least),
        "token": (0.5 * token, 1e-4 * token, 4 * token),
        "context": (OF_A_TOKEN * token, 1e-6 * token, 0.2 * token),
        "pair": (OF_A_TOKEN * token, 1e-6 * token, 0.2 * token),
        "chunk": (0.02 * least, 1e-6 * least, 2 * least),
    }
    return {**starts, "sharpness": (2.0, 1.0, 10.0)}
