"""Fits the cost model's coefficients to measured steps of the live engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

from twostroke.core.errors import ConfigError
from twostroke.model_spec.spec import ModelSpec
from twostroke.simulator.calibration.measuring import MeasuredStep
from twostroke.simulator.cost.configuration import Dtypes, Parallel
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.efficiencies import Efficiencies, Interval
from twostroke.simulator.cost.hardware_sheet import HardwareSheet
from twostroke.timing.least_deviations import Space, least_deviations

# Mean error that a fit must gain to move a coefficient by a factor of e from its start.
PULL = 0.0005


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted coefficients, the measured steps, and the estimates for them in seconds."""

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


def fit_coefficients(
    steps: Sequence[MeasuredStep],
    hardware: HardwareSheet,
    model: ModelSpec,
    start: Efficiencies,
    *,
    weights: str = "auto",
    starts: int = 8,
) -> Calibration:
    """The coefficients near ``start`` with the least error of the cost model on measured steps.

    Every class of steps has the same weight, because there are far more decode steps than others.
    The classes: steps that decode, that prefill or that do both, each just after a prefill or
    later, and after a pause or not.

    Args:
        weights: Format that the engine keeps the weights in.
        starts: How many descents; each evaluates the cost model for every step some hundred times.

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

    def estimates(tried: Efficiencies) -> list[float]:
        cost = RooflineCostModel(hardware, model, Parallel(), Dtypes(weights=weights), tried)
        return [cost.step(step.shape).seconds for step in steps]

    def errors(values: dict[str, float]) -> list[float]:
        return [
            log(seconds / step.seconds)
            for seconds, step in zip(estimates(_with(start, values)), steps)
        ]

    minimum = least_deviations(errors, shares, space, pull=PULL, starts=starts)
    fitted = _with(start, minimum.values)
    seconds = estimates(fitted)
    return Calibration(replace(fitted, interval=_interval(steps, seconds)), steps, seconds)


def _shares(steps: Sequence[MeasuredStep]) -> list[float]:
    """Weights of the steps; those of a class add up to the same for every class."""
    shapes = [step.shape for step in steps]
    classes = [
        (
            bool(shape.prefill),
            bool(shape.decode_requests),
            bool(shape.since_prefill),
            shape.after_idle,
        )
        for shape in shapes
    ]
    counts = Counter(classes)
    return [1 / (len(counts) * counts[kind]) for kind in classes]


def _interval(steps: Sequence[MeasuredStep], estimates: Sequence[float]) -> Interval:
    """10th and 90th percentile of measured over estimated, widened to include 1."""

    def ends(prefills: bool) -> tuple[float, float]:
        ratios = sorted(
            step.seconds / estimate
            for step, estimate in zip(steps, estimates)
            if bool(step.shape.prefill) is prefills
        ) or [1.0]
        return min(ratios[len(ratios) // 10], 1.0), max(ratios[len(ratios) * 9 // 10], 1.0)

    decode, prefill = ends(False), ends(True)
    return Interval(
        decode_low=decode[0], decode_high=decode[1], prefill_low=prefill[0], prefill_high=prefill[1]
    )


# Fitted values: (table, coefficient, lowest, highest). Memory shares above 1: weights in a cache.
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
    """Coefficients that are 0 at the start stay 0: no such cost, or another one covers it."""
    space = {}
    for table, name, low, high in _FITTED:
        value = getattr(start.gemm["bf16"] if table == "gemm" else getattr(start, table), name)
        if value:
            space[f"{table}.{name}"] = (min(max(value, low), high), low, high)
    return space


def _with(start: Efficiencies, values: Mapping[str, float]) -> Efficiencies:
    changed: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, name = key.split(".")
        changed.setdefault(table, {})[name] = value
    gemm = {name: replace(table, **changed["gemm"]) for name, table in start.gemm.items()}
    tables = {
        name: replace(getattr(start, name), **coefficients)
        for name, coefficients in changed.items()
        if name != "gemm"
    }
    return replace(start, gemm=gemm, **tables)
