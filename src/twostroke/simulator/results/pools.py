"""What each pool of a fleet did, and the use of all devices together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.simulator.cost.efficiencies import Interval
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.results.columns import Columns
from twostroke.simulator.results.utilisation import Utilisation, utilisation


@dataclass(frozen=True, slots=True)
class PoolRun:
    """Replicas with a role, and their steps.

    Attributes:
        replica_seconds: How long they were paid for, all together.
    """

    role: Role
    deployment: Deployment
    options: DeploymentOptions
    columns: Columns
    replica_seconds: float

    @property
    def device_hours(self) -> float:
        return self.options.num_devices * self.replica_seconds / 3600

    @property
    def dollars(self) -> float:
        hardware, given = self.deployment.hardware, self.options.price_per_hour
        return (hardware.price_per_hour if given is None else given) * self.device_hours

    @property
    def watt_hours(self) -> float:
        return self.deployment.hardware.power_watts * self.device_hours

    def use(self) -> Utilisation:
        """How well its devices were used."""
        kv_dtype = self.deployment.info.kv_cache_dtype
        return utilisation(self.columns, self.deployment, self.replica_seconds, kv_dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary:
    """One of two pools.

    Attributes:
        times_from: What its step times were fitted to.
        interval: What its steps take over their estimate.
    """

    role: Role
    description: str
    times_from: str
    interval: Interval
    replicas: int
    use: Utilisation
    dollars: float


def use_of_all(uses: Sequence[Utilisation], pools: Sequence[PoolRun]) -> Utilisation:
    """The use of all pools: means over their busy time, of MFU and MBU over that of devices."""
    if len(uses) == 1:
        return uses[0]
    total = sum(pool.replica_seconds for pool in pools)
    busy = [use.busy * pool.replica_seconds for use, pool in zip(uses, pools)]
    on_devices = [seconds * pool.options.num_devices for seconds, pool in zip(busy, pools)]
    names = sorted({name for use in uses for name in use.binding})
    return Utilisation(
        busy=sum(busy) / total if total else 0.0,
        mfu=_mean([use.mfu for use in uses], on_devices),
        mbu=_mean([use.mbu for use in uses], on_devices),
        kv_mean=_mean([use.kv_mean for use in uses], busy),
        kv_peak=max(use.kv_peak for use in uses),
        batch_mean=_mean([use.batch_mean for use in uses], busy),
        binding={name: _mean([use.binding.get(name, 0.0) for use in uses], busy) for name in names},
    )


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights)) / total if total else 0.0
