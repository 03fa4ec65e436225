"""Small fleets on a cost model of four coefficients, for tests that are not about hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from twostroke.core.config import SchedulerConfig
from twostroke.core.speculation_config import Speculation
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.observer import Observer
from twostroke.routing.routers import RouterName, make_router
from twostroke.simulator.cost.estimate import Estimate
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec, Workload
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import StepShape


@dataclass
class LinearCost:
    """Implements ``CostModel``. The numbers are crooked, so that sums of durations round."""

    start: float = 0.0071
    request: float = 1.3e-5
    context: float = 1.7e-8
    token: float = 2.9e-5
    unsettled: float = 3.1e-3
    cold: float = 1.9e-3
    draft: float = 2.1e-5
    draft_round: float = 2.3e-4

    def step(self, shape: StepShape) -> Estimate:
        seconds = (
            self.start + self.request * shape.decode_requests + self.context * shape.decode_context
        )
        seconds += self.unsettled / shape.since_prefill if shape.since_prefill else 0.0
        seconds += self.cold if shape.after_idle else 0.0
        seconds += sum(self.token * new + 1.1e-10 * new * cached for new, cached in shape.prefill)
        drafting = self.draft_round * shape.draft_rounds
        seconds += self.draft * shape.drafts + drafting
        binding = "compute" if shape.prefill else "memory"
        return Estimate(seconds, 0.9 * seconds, 1.2 * seconds, binding, drafting)


def make_executor(
    num_blocks: int = 64,
    block_size: int = 4,
    acceptance: SyntheticAcceptance | None = None,
    settling: int = 0,
    waking: bool = False,
) -> SimulatedExecutor:
    info = ExecutorInfo(
        model_id="m",
        vocab_size=50,
        max_model_len=100_000,
        num_blocks=num_blocks,
        block_size=block_size,
    )
    clock = VirtualClock()
    return SimulatedExecutor(
        info, LinearCost(), clock, acceptance=acceptance, settling=settling, waking=waking
    )


def make_fleet(
    workload: Workload,
    config: SchedulerConfig | None = None,
    *,
    replicas: int = 1,
    router: RouterName = "round-robin",
    jump: bool = True,
    caching: bool = True,
    observers: Sequence[Observer] = (),
    max_model_len: int = 100_000,
    speculation: Speculation | None = None,
    **executor: Any,
) -> tuple[Fleet, list[Replica]]:
    acceptance = None
    if speculation is not None:
        acceptance = SyntheticAcceptance(speculation.acceptance_rate)
    engines = [
        Replica(
            make_executor(acceptance=acceptance, **executor),
            config or SchedulerConfig(),
            enable_prefix_caching=caching,
            jump=jump,
            observers=observers if number == 0 else (),
            speculation=speculation,
        )
        for number in range(replicas)
    ]
    return Fleet(FixedPool(engines), make_router(router), workload, max_model_len), engines


def run_fleet(
    workload: Workload, config: SchedulerConfig | None = None, **options: Any
) -> FleetResult:
    return make_fleet(workload, config, **options)[0].run()


def specs(*rows: tuple[float, int, int]) -> OpenLoop:
    """Requests from (arrival, prompt, output)."""
    return OpenLoop([RequestSpec(number, *row) for number, row in enumerate(rows)])
