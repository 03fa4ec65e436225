"""From a deployment to the engines of its replicas."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.targets import Target
from twostroke.observability.observer import Observer
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.tiers import Bandwidths, SimulatedTiers
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import SETTLING


def make_replicas(
    deployment: Deployment,
    options: DeploymentOptions,
    cache: CacheConfig,
    scheduler: SchedulerConfig,
    tiers: KVTierConfig | None = None,
    *,
    bound: Bound = "seconds",
    jump: bool = True,
    seed: int = 0,
    observers: Sequence[Sequence[Observer]] = (),
    targets: Sequence[Target] = (),
) -> list[Replica]:
    """Fresh engines at time 0.

    Args:
        bound: Which end of the cost model's interval is taken for the truth.
        jump: Take runs of equal steps in one go.
        seed: Seed for drawing which drafts are accepted.
        observers: For each replica its own, or none: steps of all replicas are numbered alike.
        targets: When first tokens are due.
    """
    speculation, acceptance = options.resolve_speculation(), None
    if speculation is not None:
        acceptance = SyntheticAcceptance(speculation.acceptance_rate, seed)
    bandwidths = Bandwidths(1e9 * options.host_bandwidth, 1e9 * options.disk_bandwidth)
    replicas, host = [], deployment.cost.efficiencies.host
    for number in range(options.replicas):
        below = None
        if tiers is not None and tiers.needs_tiers:
            below = SimulatedTiers(tiers, deployment.info, bandwidths)
        executor = SimulatedExecutor(
            deployment.info,
            deployment.cost,
            VirtualClock(),
            bound=bound,
            acceptance=acceptance,
            settling=SETTLING if host.settle else 0,
            waking=host.wake > 0,
            tiers=below,
        )
        replicas.append(
            Replica(
                executor,
                scheduler,
                enable_prefix_caching=cache.enable_prefix_caching,
                jump=jump,
                observers=observers[number] if observers else (),
                speculation=speculation,
                targets=TTFTTargets(targets, options.model),
                preemption="recompute" if tiers is None else tiers.preemption,
            )
        )
    return replicas
