"""From deployed pools to the replicas of a fleet, and how requests find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twostroke.core.targets import Target
from twostroke.observability.observer import Observer
from twostroke.routing.routers import make_router
from twostroke.simulator.deploy_pools import DeployedPool, link_between
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.make_replicas import make_pool, replica_maker
from twostroke.simulator.fleet.peers import Link
from twostroke.simulator.fleet.places import ReplicaPlaces
from twostroke.simulator.fleet.pool import Pool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.split import Split
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What all engines of a run share; see ``replica_maker``."""

    bound: Bound
    jump: bool
    seed: int
    observers: Sequence[Sequence[Observer]]
    targets: Sequence[Target]


def make_fleet(
    scenario: Scenario, pools: Sequence[DeployedPool], settings: EngineSettings
) -> tuple[Pool, Split | None]:
    """The replicas, and where requests go if these have roles.

    Raises:
        ConfigError: Nothing says how fast blocks move.
    """
    options, answering = scenario.fleet, pools[-1]
    if not options.is_split and not options.fail:
        make = _maker(answering, settings, None)
        return make_pool(answering.deployment, answering.options, scenario.scaling, make), None
    link = split = None
    if options.is_split:
        computing = pools[0]
        link = link_between(options, computing.deployment, answering.deployment)
        split = Split(
            router=make_router(scenario.deployment.router),
            info=computing.deployment.info,
            max_model_len=computing.deployment.max_model_len,
            min_tokens=options.prefill_min_tokens,
            keeps_first=options.first_token == "prefill",
        )
    makers, roles = [], list[Role]()
    for pool in pools:
        make = _maker(pool, settings, link if pool is answering else None)
        makers += [make] * pool.options.replicas
        roles += [pool.role] * pool.options.replicas
    places = ReplicaPlaces(
        lambda place: makers[place](place),
        roles,
        options.failures(),
        scenario.deployment.slow_start,
    )
    return places, split


def _maker(
    pool: DeployedPool, settings: EngineSettings, link: Link | None
) -> Callable[[int], Replica]:
    scenario = pool.scenario
    return replica_maker(
        pool.deployment,
        pool.options,
        scenario.cache,
        pool.deployment.scheduler,
        scenario.tiers,
        bound=settings.bound,
        jump=settings.jump,
        seed=settings.seed,
        observers=settings.observers,
        targets=settings.targets,
        link=link,
    )
