"""One question to the simulator, its variations (``--sweep``), and its answer."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.observability.observer import Observer
from twostroke.simulator.fleet.deployment import Deployment, deploy, make_replicas
from twostroke.simulator.fleet.fleet import Fleet, FleetResult
from twostroke.simulator.fleet.options import DeploymentOptions
from twostroke.simulator.fleet.router import make_router
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.simulator.results.columns import Columns, to_columns
from twostroke.simulator.results.summary import Summary, summarize
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

# Of one sweep.
MAX_RUNS = 10_000
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on."""

    deployment: DeploymentOptions = field(default_factory=DeploymentOptions)
    workload: SimulatedWorkloadOptions = field(default_factory=SimulatedWorkloadOptions)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    targets: Mapping[str, float] = field(default_factory=dict)
    label: str = ""

    def setting(self) -> dict[str, Any]:
        """All flags with their values, as plain values."""
        sections = (self.deployment, self.workload, self.scheduler, self.cache)
        merged = {name: value for section in sections for name, value in asdict(section).items()}
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in merged.items()
        }

    def varied(self, changes: Mapping[str, str]) -> Scenario:
        """With other values of some flags, as text. Raises ConfigError."""
        found: Scenario = self
        for name, text in changes.items():
            found = _with_flag(found, name, text)
        return replace(found, label=", ".join(f"{name}={value}" for name, value in changes.items()))


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario and what came of it."""

    scenario: Scenario
    deployment: Deployment
    result: FleetResult
    columns: Columns
    summary: Summary
    notes: tuple[str, ...] = ()
    interval: Mapping[str, Summary] = field(default_factory=dict)

    def without_steps(self) -> Run:
        """What is left once the report's fields are made: the steps of many long runs would fill
        the memory.
        """
        return replace(self, result=replace(self.result, logs=[]), columns=to_columns([]))


def simulate(
    scenario: Scenario,
    *,
    interval: bool = False,
    jump: bool = True,
    observers: Sequence[Sequence[Observer]] = (),
    progress: Progress = lambda _: None,
) -> Run:
    """Run a scenario to its end, or until Ctrl-C (then ``result.interrupted``).

    Args:
        interval: Also with each end of the cost model's interval taken for the truth.
        observers: For each replica its own, or none.
        progress: Called with the number of requests that have just ended.
    """
    deployment = deploy(scenario.deployment, scenario.cache, scenario.scheduler)
    result, columns, summary, note = _run(
        scenario, deployment, "seconds", jump, observers, progress
    )
    ends: dict[str, Summary] = {}
    bounds: tuple[Bound, Bound] = ("low", "high")
    for bound in bounds if interval and not result.interrupted else ():
        other, _, ends[bound], _ = _run(scenario, deployment, bound, jump, (), progress)
        if other.interrupted:
            ends, result.interrupted = {}, True
            break
    notes = (*deployment.notes, *([note] if note else []))
    if idle := ["--" + name.replace("_", "-") for name in scenario.workload.without_effect()]:
        asked = f"--workload {scenario.workload.workload} --arrivals {scenario.workload.arrivals}"
        notes += (f"nothing depends on {', '.join(idle)} with {asked}",)
    if deployment.state_bytes and summary.prefix_hit_rate:
        notes += (
            (
                "prefix hits count as if recurrent states were kept with the blocks; their memory"
                " is not counted"
            ),
        )
    return Run(scenario, deployment, result, columns, summary, notes, ends)


def fitting(scenarios: Sequence[Scenario]) -> tuple[list[Scenario], list[str]]:
    """Those whose model fits into the memory, and for each of the others a sentence that says by
    how much it does not.

    Raises:
        ConfigError: One asks for what is not there; better now than after the runs before it.
        ModelLoadError: The same, of its model.
        InsufficientMemoryError: None fits.
    """
    for workload in {
        (s.workload.workload, s.workload.trace_path): s.workload for s in scenarios
    }.values():
        make_workload(workload)
    found, left_out, first = [], [], None
    for scenario in scenarios:
        try:
            deploy(scenario.deployment, scenario.cache, scenario.scheduler)
            found.append(scenario)
        except InsufficientMemoryError as error:
            first = first or error
            left_out.append(f"{scenario.label} is left out: {error.message}")
    if first is not None and not found:
        raise first
    return found, left_out


def count_requests(scenario: Scenario, interval: bool = False) -> int:
    """How many requests ``simulate`` will run."""
    return make_workload(scenario.workload).workload.total * (3 if interval else 1)


def _run(
    scenario: Scenario,
    deployment: Deployment,
    bound: Bound,
    jump: bool,
    observers: Sequence[Sequence[Observer]],
    progress: Progress,
) -> tuple[FleetResult, Columns, Summary, str | None]:
    options = scenario.deployment
    replicas = make_replicas(
        deployment,
        options,
        scenario.cache,
        scenario.scheduler,
        bound=bound,
        jump=jump,
        seed=scenario.workload.seed,
        observers=observers,
    )
    made = make_workload(scenario.workload)
    fleet = Fleet(replicas, make_router(options.router), made.workload, deployment.max_model_len)
    result = fleet.run(progress)
    columns = to_columns(result.logs)
    summary = summarize(result, columns, deployment, options, scenario.targets, made.workload.total)
    return result, columns, summary, made.note


# ---- sweeps --------------------------------------------------------------------------------------


def sweep(scenario: Scenario, axes: tuple[str, ...]) -> list[Scenario]:
    """All combinations of the axes' values, in order; the scenario itself without axes. Raises
    ConfigError.
    """
    if not axes:
        return [scenario]
    names, values = zip(*(parse_axis(axis) for axis in axes))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"--sweep names {twice[0]} twice",
            hint=f"give all values at once: --sweep {twice[0]}=1,2,3",
        )
    if (count := prod(map(len, values))) > MAX_RUNS:
        raise ConfigError(f"--sweep asks for {count:,} runs", hint=f"at most {MAX_RUNS:,} at once")
    return [scenario.varied(dict(zip(names, chosen))) for chosen in product(*values)]


def parse_axis(text: str) -> tuple[str, list[str]]:
    """``rate=1:16`` (doubling), ``rate=1:16:6`` (six, evenly spaced) or ``gpu=h100,l40s``. Raises
    ConfigError.
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
    points = _even(low, high, int(count[0])) if count else _doubling(low, high)
    return name, [f"{point:.6g}" for point in points]


def _even(low: float, high: float, count: int) -> Iterator[float]:
    return (low + (high - low) * at / (count - 1) for at in range(count))


def _doubling(low: float, high: float) -> Iterator[float]:
    while low < high * (1 - 1e-9):
        yield low
        low *= 2
    yield high


def _with_flag(scenario: Scenario, name: str, text: str) -> Scenario:
    for section in ("deployment", "workload", "scheduler", "cache"):
        options = getattr(scenario, section)
        if name in {f.name for f in fields(options)}:
            value = _convert(name, text, typing.get_type_hints(type(options))[name])
            changed: Any = replace(options, **{name: value})
            sections: dict[str, Any] = {section: changed}
            return replace(scenario, **sections)
    raise ConfigError(
        f"--sweep: there is no flag {name!r}",
        hint="sweep any flag of model, workload, scheduling, cache",
    )


def _convert(name: str, text: str, kind: Any) -> Any:
    """A flag's value from text, by the type of its field."""
    wanted = {kind} | set(typing.get_args(kind))
    if type(None) in wanted and text.lower() == "none":
        return None
    if bool in wanted:
        if text.lower() in ("true", "false", "on", "off", "yes", "no"):
            return text.lower() in ("true", "on", "yes")
        raise ConfigError(
            f"--sweep {name}: {text!r} is neither true nor false", hint="write true,false"
        )
    for type_ in (int, float):
        if type_ in wanted:
            try:
                return type_(float(text)) if type_ is float or float(text) % 1 == 0 else int(text)
            except (ValueError, OverflowError):
                if name == "kv_cache_memory":
                    return text  # with a unit: the option itself reads it
                raise ConfigError(
                    f"--sweep {name}: {text!r} is no {type_.__name__}", hint="give numbers"
                ) from None
    return Path(text) if Path in wanted else text
