"""From a deployment to the engines of its replicas, and the pool that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.kv_tier_config import KVTierConfig
from twostroke.core.targets import Target
from twostroke.observability.observer import Observer
from twostroke.routing.autoscaler import AutoscalerOptions
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.peers import Link, SimulatedPeers
from twostroke.simulator.fleet.pool import FixedPool, Pool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.scaled_pool import ScaledPool
from twostroke.simulator.fleet.tiers import Bandwidths, SimulatedTiers
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import SETTLING

# Until a process has its devices, and an engine its graphs; its weights come on top.
USUAL_START_SECONDS = 30.0


def make_pool(
    deployment: Deployment,
    options: DeploymentOptions,
    scaling: AutoscalerOptions,
    make: Callable[[int], Replica],
) -> Pool:
    """All replicas from the start, or those that an autoscaler starts."""
    if scaling.autoscale is None:
        return FixedPool([make(number) for number in range(options.replicas)])
    seconds = options.start_seconds
    if seconds is None:
        # What groups with requests of their own have alike is read once.
        devices = options.num_devices
        if not any(layer.experts for layer in deployment.model.layers):
            devices //= options.data_parallel_size
        read = deployment.weight_bytes * devices / (1e9 * options.disk_bandwidth)
        seconds = USUAL_START_SECONDS + read
    return ScaledPool(make, scaling, options.replicas, seconds, options.slow_start)


def replica_maker(
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
    link: Link | None = None,
) -> Callable[[int], Replica]:
    """What makes the engine of an index, fresh at time 0.

    Args:
        bound: Which end of the cost model's interval is taken for the truth.
        jump: Take runs of equal steps in one go.
        seed: Seed for drawing which drafts are accepted.
        observers: For each replica its own, or none: steps of all replicas are numbered alike.
        targets: When first tokens are due.
        link: What moving blocks here from replicas that compute prompts takes, if there are any.
    """
    speculation, acceptance = options.resolve_speculation(), None
    if speculation is not None:
        acceptance = SyntheticAcceptance(speculation.acceptance_rate, seed)
    bandwidths = Bandwidths(1e9 * options.host_bandwidth, 1e9 * options.disk_bandwidth)
    host = deployment.cost.efficiencies.host

    def make(number: int) -> Replica:
        below, info = None, deployment.info
        if link is not None or (tiers is not None and tiers.needs_tiers):
            peers = (
                None if link is None else SimulatedPeers(link, info.num_blocks, info.block_bytes)
            )
            below = SimulatedTiers(tiers or KVTierConfig(), info, bandwidths, peers)
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
        return Replica(
            executor,
            scheduler,
            enable_prefix_caching=cache.enable_prefix_caching,
            jump=jump,
            observers=observers[number] if number < len(observers) else (),
            speculation=speculation,
            targets=TTFTTargets(targets, options.model),
            preemption="recompute" if tiers is None else tiers.preemption,
        )

    return make
