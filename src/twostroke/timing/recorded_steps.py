"""A cost model fitted to recorded steps alone: it needs no model, no sheet, no calibration.

A step takes what the host needs, the longer of reading the weights and multiplying with them (as a
sum of powers, so that there is no edge), and attention over cached tokens:

    step + request * requests + (weights^s + (token * tokens)^s)^(1/s)
         + context * cached tokens read by decodes + pair * pairs of prompt tokens + chunk * chunks

The roofline of ``simulator/cost/cost_model.py`` with the sizes of model and machine folded into
seven numbers. It knows nothing beyond the range of what was recorded: a batch ten times as large
is an extrapolation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from twostroke.core.errors import ConfigError
from twostroke.timing.least_deviations import Space, least_deviations
from twostroke.timing.step_shape import StepShape

Columns = npt.NDArray[np.float64]
# Mean error that a fit must gain to move a coefficient by a factor of e from its start.
PULL = 0.001
STARTS = 3
MIN_STEPS = 8
MAX_STEPS = 2000
# A token that attends to another costs this share of a token that passes the weights, about: one
# over three times the width of a small model. Only where the steps do not tell.
OF_A_TOKEN = 1 / 2000


class FittedStepTimes(NamedTuple):
    """Step times by the module's formula.

    Attributes:
        coefficients: By name, in seconds.
        num_steps: Recorded steps that they were fitted to.
        median_error: Median error of those estimates, as a share.
    """

    coefficients: dict[str, float]
    num_steps: int
    median_error: float

    def seconds(self, shape: StepShape) -> float:
        return float(_seconds(np.array([_sizes(shape)]), self.coefficients)[0])

    def seconds_of(self, shapes: Sequence[StepShape]) -> Columns:
        """Many at once, in a fraction of the time."""
        if not shapes:
            return np.zeros(0)
        return _seconds(np.array([_sizes(shape) for shape in shapes]), self.coefficients)


def fit_step_times(steps: Sequence[tuple[StepShape, float]]) -> FittedStepTimes:
    """The coefficients with the least error on steps and their seconds.

    Steps that decode, that prefill and that do both have the same weight together, since there are
    far more of the first. Of many steps, only every n-th is taken. What other programs add to some
    of them is not in it (``simulator/replay/machine_speed.py``).

    Raises:
        ConfigError: Too few steps.
    """
    steps = [(shape, seconds) for shape, seconds in steps if seconds > 0]
    if len(steps) < MIN_STEPS:
        raise ConfigError(
            f"only {len(steps)} steps are recorded; step times need at least {MIN_STEPS}",
            hint="choose a longer range",
        )
    steps = steps[:: -(-len(steps) // MAX_STEPS)]
    sizes = np.array([_sizes(shape) for shape, _ in steps])
    measured = np.array([seconds for _, seconds in steps])
    space = _space(sizes, measured)

    def errors(values: dict[str, float]) -> list[float]:
        logs: list[float] = np.log(_seconds(sizes, values) / measured).tolist()
        return logs

    kinds = [(bool(shape.prefill), bool(shape.decode_requests)) for shape, _ in steps]
    counts = Counter(kinds)
    shares = [1 / (len(counts) * counts[kind]) for kind in kinds]
    values = least_deviations(errors, shares, space, pull=PULL, starts=STARTS).values
    error = np.abs(_seconds(sizes, values) / measured - 1)
    return FittedStepTimes(dict(values), len(steps), float(np.median(error)))


def _sizes(shape: StepShape) -> tuple[float, ...]:
    """What the formula counts of a step: requests, tokens, context, pairs, chunks."""
    new = sum(chunk for chunk, _ in shape.prefill)
    pairs = sum(chunk * before + chunk * (chunk + 1) / 2 for chunk, before in shape.prefill)
    requests = shape.decode_requests + len(shape.prefill)
    tokens = shape.decode_requests + new
    return (requests, tokens, shape.decode_context, pairs, len(shape.prefill))


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
    """The start and bounds of the descent: from the shortest steps and those with most tokens."""
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
