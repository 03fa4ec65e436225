"""From a deployment to the engines of its replicas."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.observability.observer import Observer
from twostroke.simulator.cost.step_shape import SETTLING
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.acceptance import Acceptance
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.jumping.decode_curve import Bound


def make_replicas(
    deployment: Deployment,
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    *,
    bound: Bound = "seconds",
    jump: bool = True,
    seed: int = 0,
    observers: Sequence[Sequence[Observer]] = (),
) -> list[Replica]:
    """Fresh engines at time 0.

    Args:
        bound: Which end of the cost model's interval is taken for the truth.
        jump: Take runs of equal steps in one go.
        seed: Of the draws of accepted drafts.
        observers: For each replica its own, or none: steps of all replicas are numbered alike.
    """
    acceptance = None
    if options.speculative_tokens:
        acceptance = Acceptance(options.speculative_tokens, options.acceptance, seed)
    replicas, host = [], deployment.cost.efficiencies.host
    for number in range(options.replicas):
        executor = SimulatedExecutor(
            deployment.info,
            deployment.cost,
            VirtualClock(),
            bound=bound,
            acceptance=acceptance,
            settling=SETTLING if host.settle else 0,
            waking=host.wake > 0,
        )
        replicas.append(
            Replica(
                executor,
                scheduler,
                enable_prefix_caching=cache.enable_prefix_caching,
                jump=jump,
                observers=observers[number] if observers else (),
            )
        )
    return replicas
