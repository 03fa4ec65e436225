"""One question to the simulator: a model on hardware, a workload, the engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from twostroke.core.config import CacheConfig, SchedulerOptions
from twostroke.core.errors import InsufficientMemoryError
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.targets import Target
from twostroke.simulator.cost.hardware_sheet import load_hardware
from twostroke.simulator.deployment.deployment import Deployment, deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


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
    targets: Mapping[str, float] = field(default_factory=dict)
    watched: tuple[Target, ...] = ()
    label: str = ""

    def setting(self) -> dict[str, Any]:
        """All flags with their values, as plain values."""
        sections = (self.deployment, self.workload, self.scheduler, self.cache, self.tiers)
        merged = {name: value for section in sections for name, value in asdict(section).items()}
        return {
            name: str(value) if isinstance(value, Path) else value for name, value in merged.items()
        }


def deploy_scenario(scenario: Scenario) -> tuple[Scenario, Deployment]:
    """The scenario with every default filled in, and its deployment.

    Where a GPU's defaults do not fit (the states of 256 requests take memory, too), the smaller
    ones of a CPU hold, and a note says so.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: See ``deploy``.
    """
    if load_hardware(scenario.deployment.gpu).is_cpu:
        return _deploy(scenario, gpu=False)
    try:
        return _deploy(scenario, gpu=True)
    except InsufficientMemoryError:
        smaller, deployment = _deploy(scenario, gpu=False)
        config = deployment.scheduler
        note = (
            f"a GPU's defaults do not fit: --max-num-seqs is {config.max_num_seqs} and"
            f" --max-num-batched-tokens {config.max_num_batched_tokens}"
        )
        return smaller, replace(deployment, notes=(*deployment.notes, note))


def _deploy(scenario: Scenario, *, gpu: bool) -> tuple[Scenario, Deployment]:
    scheduler = scenario.scheduler.for_device(gpu=gpu)
    deployment = deploy(scenario.deployment, scenario.cache, scheduler)
    return replace(scenario, scheduler=scheduler), deployment
