"""One question to the simulator: a model on hardware, a workload, the engine's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on.

    Attributes:
        targets: Most seconds of ``ttft``, ``tpot`` or ``e2el`` that a good request may take.
        label: How it differs from the other scenarios of a sweep; empty for one alone.
    """

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
