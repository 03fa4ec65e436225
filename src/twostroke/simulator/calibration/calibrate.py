"""Coefficients of the machine at hand: what makes the cost model agree with steps of the live
engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from typing import Any

from twostroke.core.errors import ConfigError
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.calibration.calibration_steps import MeasuredStep
from twostroke.simulator.calibration.fitting import Space, least_deviations
from twostroke.simulator.calibration.machine_speed import Speed
from twostroke.simulator.calibration.measured_on import MeasuredOn
from twostroke.simulator.cost.cost_model import Dtypes, Parallel, RooflineCostModel
from twostroke.simulator.cost.efficiencies import Efficiencies, Interval
from twostroke.simulator.cost.hardware_sheet import HardwareSheet

# A fit has to gain this much in mean error before it moves a coefficient from its start by a factor
# of e.
PULL = 0.0005


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted coefficients, and what they say of the measured steps, in seconds and in their
    order.
    """

    efficiencies: Efficiencies
    steps: Sequence[MeasuredStep]
    estimates: list[float]

    @property
    def ratios(self) -> list[float]:
        """Measured over estimated, sorted."""
        return sorted(step.seconds / estimate for step, estimate in zip(self.steps, self.estimates))

    @property
    def median_error(self) -> float:
        errors = sorted(abs(1 / ratio - 1) for ratio in self.ratios)
        return errors[len(errors) // 2]


def calibrate(
    steps: Sequence[MeasuredStep],
    hardware: HardwareSheet,
    model: ModelSpec,
    start: Efficiencies,
    *,
    weights: str = "auto",
    starts: int = 8,
) -> Calibration:
    """The coefficients near ``start`` under which the cost model is least wrong about measured
    steps.

    What counts is the mean error of steps that decode, soon after others that prefill or later, of
    those that prefill, after others or after a pause, and of those that do both, each alike: there
    are far more of the first two.

    Args:
        weights: Format that the engine keeps the weights in.
        starts: How many descents; each asks the cost model for every step some hundreds of times.

    Raises:
        ConfigError: There are no steps, or some took no time.
    """
    if not steps:
        raise ConfigError(
            "no steps were measured", hint="give the engine room for them: --kv-cache-memory 1GiB"
        )
    if min(step.seconds for step in steps) <= 0:
        raise ConfigError("some steps took no time", hint="measure on a clock that runs")
    space = _space(start)
    shares = _shares(steps)

    def estimates(made: Efficiencies) -> list[float]:
        cost = RooflineCostModel(hardware, model, Parallel(), Dtypes(weights=weights), made)
        return [cost.step(step.shape).seconds for step in steps]

    def errors(values: dict[str, float]) -> list[float]:
        return [
            log(one / step.seconds) for one, step in zip(estimates(_with(start, values)), steps)
        ]

    found = _with(start, least_deviations(errors, shares, space, pull=PULL, starts=starts).values)
    seconds = estimates(found)
    return Calibration(replace(found, interval=_interval(steps, seconds)), steps, seconds)


def _shares(steps: Sequence[MeasuredStep]) -> list[float]:
    """Weights of the steps, the same in all for every class of them."""
    shapes = [step.shape for step in steps]
    classes = [
        (bool(each.prefill), bool(each.decode_requests), bool(each.since_prefill), each.after_idle)
        for each in shapes
    ]
    counts = Counter(classes)
    return [1 / (len(counts) * counts[each]) for each in classes]


def _interval(steps: Sequence[MeasuredStep], estimates: Sequence[float]) -> Interval:
    """Tenth and ninetieth percentile of measured over estimated; at least it holds the estimate
    itself.
    """

    def ends(prefills: bool) -> tuple[float, float]:
        chosen = [
            (step, one)
            for step, one in zip(steps, estimates)
            if bool(step.shape.prefill) is prefills
        ]
        ratios = sorted(step.seconds / one for step, one in chosen) or [1.0]
        return min(ratios[len(ratios) // 10], 1.0), max(ratios[len(ratios) * 9 // 10], 1.0)

    decode, prefill = ends(False), ends(True)
    return Interval(
        decode_low=decode[0], decode_high=decode[1], prefill_low=prefill[0], prefill_high=prefill[1]
    )


def as_toml(
    calibration: Calibration,
    source: str,
    speed: Speed | None = None,
    measured: MeasuredOn | None = None,
) -> str:
    """A file for ``load_efficiencies(device, path)``.

    Args:
        source: One line on where the numbers are from; ``speed``: how fast the machine was then,
            for whoever compares with it; ``measured``: which machine that was, and what ran on it.
    """
    found = calibration.efficiencies
    tables: dict[str, dict[str, Any]] = {
        f"gemm.{name}": asdict(value) for name, value in found.gemm.items()
    }
    tables["step"] = {"decode": found.step_decode, "prefill": found.step_prefill}
    for name in ("decode", "prefill", "elementwise", "all_reduce", "host", "interval"):
        tables[name] = asdict(getattr(found, name))
    if speed is not None:
        tables["speed"] = speed._asdict()
    if measured is not None:
        tables["measured"] = asdict(measured)
    lines = [f"source = {json.dumps(source, ensure_ascii=False)}"]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return str(value).lower() if isinstance(value, bool) else repr(float(f"{value:.5g}"))


# What is fitted: (table, coefficient, lowest, highest). Memory shares above 1 are weights that stay
# in a cache.
_FITTED = (
    ("gemm", "compute", 0.02, 4.0),
    ("gemm", "memory", 0.05, 6.0),
    ("gemm", "launch", 1e-7, 1e-3),
    ("gemm", "sharpness", 1.0, 10.0),
    ("decode", "memory", 0.005, 6.0),
    ("decode", "launch", 1e-7, 1e-2),
    ("decode", "block", 1e-8, 1e-2),
    ("prefill", "compute", 0.005, 1.5),
    ("prefill", "memory", 0.005, 6.0),
    ("prefill", "launch", 1e-7, 1e-2),
    ("prefill", "block", 1e-9, 1e-2),
    ("prefill", "chunk", 1e-7, 1e-2),
    ("prefill", "sharpness", 1.0, 10.0),
    ("elementwise", "memory", 0.005, 6.0),
    ("elementwise", "launch", 1e-7, 1e-3),
    ("host", "step", 1e-6, 1.0),
    ("host", "request", 1e-8, 1e-2),
    ("host", "token", 1e-9, 1e-3),
    ("host", "settle", 1e-7, 1e-1),
    ("host", "fade", 0.05, 0.95),
    ("host", "wake", 1e-7, 1e-1),
)


def _space(start: Efficiencies) -> Space:
    """What is 0 at the start stays so: the device has no such cost, or another coefficient covers
    it.
    """
    space = {}
    for table, name, low, high in _FITTED:
        value = getattr(start.gemm["bf16"] if table == "gemm" else getattr(start, table), name)
        if value:
            space[f"{table}.{name}"] = (min(max(value, low), high), low, high)
    return space


def _with(start: Efficiencies, values: Mapping[str, float]) -> Efficiencies:
    changed: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        table, name = key.split(".")
        changed.setdefault(table, {})[name] = value
    gemm = {name: replace(found, **changed["gemm"]) for name, found in start.gemm.items()}
    tables = {
        name: replace(getattr(start, name), **found)
        for name, found in changed.items()
        if name != "gemm"
    }
    return replace(start, gemm=gemm, **tables)
