"""One question to the simulator: a model on hardware, a workload, the engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import ConfigError, InsufficientMemoryError
from twostroke.core.flags.values import require
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.targets import Target
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware
from twostroke.simulator.deployment.deployment import Deployment, deploy
from twostroke.simulator.deployment.fleet_options import FleetOptions
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.deployment.stack_defaults import stack_defaults
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

SPLITS = ("data_parallel_size", "pipeline_parallel_size", "enable_expert_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on.

    Attributes:
        targets: Most seconds of ``ttft``, ``tpot`` or ``e2el`` that a good request may take.
        watched: Targets as of a server: its TTFT targets are deadlines.
        label: How it differs from the other scenarios of a sweep; empty for one alone.
    """

    deployment: DeploymentOptions = field(default_factory=DeploymentOptions)
    workload: SimulatedWorkloadOptions = field(default_factory=SimulatedWorkloadOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    cache: CacheConfig = field(default_factory=CacheConfig)
    tiers: KVTierConfig = field(default_factory=KVTierConfig)
    scaling: AutoscalerOptions = field(default_factory=AutoscalerOptions)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    targets: Mapping[str, float] = field(default_factory=dict)
    watched: tuple[Target, ...] = ()
    label: str = ""

    def __post_init__(self) -> None:
        self._check_fleet()
        scaling, replicas = self.scaling, self.deployment.replicas
        if scaling.autoscale is None:
            return
        allowed = f"from --min-replicas to --max-replicas: {scaling.min_replicas or 1} to"
        is_within = scaling.min_replicas <= replicas <= scaling.max_replicas
        require(is_within, "--replicas", replicas, f"{allowed} {scaling.max_replicas}")

    def _check_fleet(self) -> None:
        fleet = self.fleet
        if not (fleet.is_split or fleet.fail):
            return
        if self.scaling.autoscale is not None:
            raise ConfigError(
                "--autoscale is of one pool whose replicas stay well",
                hint="leave out --autoscale, or --prefill, --decode and --fail",
            )
        if fleet.is_split and self.deployment.replicas != 1:
            raise ConfigError(
                "--replicas says nothing of two pools",
                hint="give each its own: --prefill replicas=2 --decode replicas=3",
            )
        for failure in fleet.failures():
            ok = failure.place < self.num_replicas
            allowed = f"a replica from 0 to {self.num_replicas - 1}"
            require(ok, "--fail", f"replica={failure.place}", allowed)

    @property
    def num_replicas(self) -> int:
        """How many all pools have at the beginning."""
        pools = self.fleet.pools().values()
        return sum(pool.get("replicas", 1) for pool in pools) or self.deployment.replicas

    def setting(self) -> dict[str, Any]:
        """All flags with their values, as plain values.

        Those of a fleet, and of further ways to split a model, are there if any is given.
        """
        parts = (self.deployment, self.workload, self.scheduler, self.cache, self.tiers)
        sections: tuple[Any, ...] = (*parts, self.scaling)
        if self.fleet != FleetOptions():
            sections = (*sections, self.fleet)
        merged = {name: value for section in sections for name, value in asdict(section).items()}
        if self.deployment.parallel.splits_tensors_only:
            merged = {name: value for name, value in merged.items() if name not in SPLITS}
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in merged.items()
        }


def deploy_scenario(scenario: Scenario) -> tuple[Scenario, Deployment]:
    """The scenario with every default filled in, and its deployment.

    A GPU gets the defaults of the serving stack that is named, else the live engine's. Where they
    do not fit (the states of 256 requests take memory, too), half as many requests run, or a
    quarter and so on, and a note says so.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: See ``deploy``.
    """
    hardware = load_hardware(scenario.deployment.gpu)
    filled = _fill_in(scenario, hardware)
    try:
        return filled, _deploy(filled)
    except InsufficientMemoryError:
        if hardware.is_cpu or scenario.scheduler.max_num_seqs is not None:
            raise
        return _deploy_fewer(filled)


def _fill_in(scenario: Scenario, hardware: HardwareSheet) -> Scenario:
    stack, options = scenario.deployment.serving_stack, scenario.scheduler
    defaults = stack_defaults(stack, hardware) if stack and not hardware.is_cpu else None
    if defaults is not None:
        given = {
            name: value
            for name, value in defaults._asdict().items()
            if getattr(options, name) is None
        }
        options = replace(options, **given)
    return replace(scenario, scheduler=options.for_device(gpu=not hardware.is_cpu))


def _deploy(scenario: Scenario) -> Deployment:
    return deploy(scenario.deployment, scenario.cache, scenario.scheduler.for_device(gpu=True))


def _deploy_fewer(scenario: Scenario) -> tuple[Scenario, Deployment]:
    """Deploy with as many requests as fit, by halves. Raises InsufficientMemoryError."""
    seqs = scenario.scheduler.max_num_seqs or 1
    while True:
        seqs = max(1, seqs // 2)
        smaller = replace(scenario, scheduler=replace(scenario.scheduler, max_num_seqs=seqs))
        try:
            deployment = _deploy(smaller)
        except InsufficientMemoryError:
            if seqs == 1:
                raise
            continue
        note = f"the default of --max-num-seqs does not fit: it is {seqs}"
        return smaller, replace(deployment, notes=(*deployment.notes, note))
