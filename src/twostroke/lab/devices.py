"""A model on devices that are not here: steps by the cost model, runs by the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from twostroke.core.config import CacheConfig, SchedulerConfig, SchedulerOptions
from twostroke.core.errors import InsufficientMemoryError
from twostroke.simulator.cost.cost_model import RooflineCostModel
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.deployment.deployment import Deployment, deploy, make_cost_model
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.results.run import Run
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.simulate import simulate
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.timing.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Placed:
    """A model on ``tp`` equal devices.

    Attributes:
        draft_model: What makes drafts; without one they cost nothing.
    """

    model: str
    gpu: str
    tp: int = 1
    draft_model: str | None = None

    @property
    def cost(self) -> RooflineCostModel:
        return _cost(self)

    def options(self) -> DeploymentOptions:
        drafts = 1 if self.draft_model else 0
        return DeploymentOptions(
            model=self.model,
            gpu=self.gpu,
            tp=self.tp,
            speculative_model=self.draft_model,
            speculative_tokens=drafts,
        )

    def describe(self) -> str:
        return f"{self.model} on {self.tp} x {self.cost.hardware.name}"

    def deployment(self, scheduler: SchedulerConfig | None = None) -> Deployment:
        """The model in the devices' memory. Raises InsufficientMemoryError."""
        return deploy(self.options(), CacheConfig(), scheduler or SchedulerConfig())

    @property
    def fits(self) -> bool:
        """Whether weights and a request have room."""
        try:
            self.deployment()
        except InsufficientMemoryError:
            return False
        return True

    def prompt(self, tokens: int, cached: int = 0) -> Estimate:
        """A step that computes a prompt, or a chunk of one behind ``cached`` tokens."""
        return self.cost.step(StepShape(0, 0, ((tokens, cached),), 1))

    def decode(self, requests: int, context: int, *, drafts: int = 0) -> Estimate:
        """A step that gives each request a token, after it has checked ``drafts`` for each."""
        rounds = drafts if self.draft_model else 0
        return self.cost.step(
            StepShape(
                requests,
                requests * context,
                (),
                requests,
                drafts=requests * drafts,
                draft_rounds=rounds,
            )
        )

    def mixed(self, requests: int, context: int, tokens: int, cached: int = 0) -> Estimate:
        """A step in which requests decode beside a chunk of a prompt."""
        shape = StepShape(requests, requests * context, ((tokens, cached),), requests + 1)
        return self.cost.step(shape)

    def run(self, workload: SimulatedWorkloadOptions, **scheduler: Any) -> Run:
        """A workload through the scheduler that serves."""
        return simulate(
            Scenario(
                deployment=self.options(),
                workload=workload,
                scheduler=SchedulerOptions(**scheduler),
            )
        )


@cache
def _cost(placed: Placed) -> RooflineCostModel:
    return make_cost_model(placed.options(), CacheConfig())
