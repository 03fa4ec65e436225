"""Variations of a scenario: ``--sweep`` gives several values to any of its flags."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any

from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.simulator.deploy_pools import deploy_pools
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.workloads.make import make_workload

# Of one sweep.
MAX_RUNS = 10_000


def sweep(scenario: Scenario, axes: tuple[str, ...]) -> list[Scenario]:
    """All combinations of the axes' values, in order; without axes the scenario itself.

    Raises:
        ConfigError: An axis cannot be read or is given twice, or there are too many combinations.
    """
    if not axes:
        return [scenario]
    names, values = zip(*(parse_axis(axis) for axis in axes))
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"--sweep names {repeated[0]} twice",
            hint=f"give all values at once: --sweep {repeated[0]}=1,2,3",
        )
    if (count := prod(map(len, values))) > MAX_RUNS:
        raise ConfigError(f"--sweep asks for {count:,} runs", hint=f"at most {MAX_RUNS:,} at once")
    return [vary(scenario, dict(zip(names, point))) for point in product(*values)]


def vary(scenario: Scenario, changes: Mapping[str, str]) -> Scenario:
    """The scenario with other values of some flags, given as text. Raises ConfigError."""
    changed: dict[str, dict[str, Any]] = {}
    for name, text in changes.items():
        section, value = _flag_value(scenario, name, text)
        changed.setdefault(section, {})[name] = value
    # All at once: one may be allowed only together with another.
    sections: dict[str, Any] = {
        section: replace(getattr(scenario, section), **values)
        for section, values in changed.items()
    }
    label = ", ".join(f"{name}={value}" for name, value in changes.items())
    return replace(scenario, **sections, label=label)


def parse_axis(text: str) -> tuple[str, list[str]]:
    """A flag's name and its values.

    ``rate=1:16`` doubles from 1 to 16, ``rate=1:16:6`` gives six values evenly spaced,
    ``gpu=h100,l40s`` a list. Raises ConfigError.
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    hint = "such as --sweep rate=1:16, --sweep rate=1:16:6 or --sweep gpu=h100,l40s"
    if not name or not values:
        raise ConfigError(f"--sweep {text!r} is no flag with values", hint=hint)
    if ":" not in values:
        return name, [value.strip() for value in values.split(",")]
    try:
        low, high, *count = (float(part) for part in values.split(":"))
        if (
            not 0 < low < high < inf
            or len(count) > 1
            or (count and (not 2 <= count[0] <= MAX_RUNS or count[0] % 1))
        ):
            raise ValueError
    except ValueError:
        raise ConfigError(f"--sweep {text!r} is no range", hint=hint) from None
    points = _spaced(low, high, int(count[0])) if count else _doubling(low, high)
    return name, [f"{point:.6g}" for point in points]


def keep_fitting(scenarios: Sequence[Scenario]) -> tuple[list[Scenario], list[str]]:
    """The scenarios whose model fits into memory, and a sentence on each that is left out.

    Raises:
        ConfigError: A scenario names something unknown; better now than after other runs.
        ModelLoadError: The same, of its model.
        InsufficientMemoryError: No model fits.
    """
    workloads = {(s.workload.workload, s.workload.trace_path): s.workload for s in scenarios}
    for workload in workloads.values():
        make_workload(workload)
    fitting, left_out, first_error = [], [], None
    for scenario in scenarios:
        try:
            deploy_pools(scenario)
            fitting.append(scenario)
        except InsufficientMemoryError as error:
            first_error = first_error or error
            left_out.append(f"{scenario.label} is left out: {error.message}")
    if first_error is not None and not fitting:
        raise first_error
    return fitting, left_out


def _spaced(low: float, high: float, count: int) -> Iterator[float]:
    return (low + (high - low) * index / (count - 1) for index in range(count))


def _doubling(low: float, high: float) -> Iterator[float]:
    while low < high * (1 - 1e-9):
        yield low
        low *= 2
    yield high


def _flag_value(scenario: Scenario, name: str, text: str) -> tuple[str, Any]:
    """The section of a scenario that has this flag, and what the text gives it."""
    for section in ("deployment", "workload", "scheduler", "cache", "tiers", "scaling", "fleet"):
        options = getattr(scenario, section)
        if name in {f.name for f in fields(options)}:
            return section, _convert(name, text, typing.get_type_hints(type(options))[name])
    raise ConfigError(
        f"--sweep: there is no flag {name!r}",
        hint="sweep any flag of model, workload, scheduling, cache",
    )


def _convert(name: str, text: str, annotation: Any) -> Any:
    """A flag's value from text, by the annotation of its field."""
    types = {annotation} | set(typing.get_args(annotation))
    if type(None) in types and text.lower() == "none":
        return None
    if bool in types:
        if text.lower() in ("true", "false", "on", "off", "yes", "no"):
            return text.lower() in ("true", "on", "yes")
        raise ConfigError(
            f"--sweep {name}: {text!r} is neither true nor false", hint="write true,false"
        )
    for number_type in (int, float):
        if number_type in types:
            return _convert_number(name, text, number_type)
    return Path(text) if Path in types else text


def _convert_number(name: str, text: str, number_type: type[int] | type[float]) -> Any:
    try:
        if number_type is float or float(text) % 1 == 0:
            return number_type(float(text))
        return int(text)
    except (ValueError, OverflowError):
        if name == "kv_cache_memory":
            return text  # with a unit: the option itself reads it
        raise ConfigError(
            f"--sweep {name}: {text!r} is no {number_type.__name__}", hint="give numbers"
        ) from None
