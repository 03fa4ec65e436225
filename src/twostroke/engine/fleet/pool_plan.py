"""How a pool of engines is to be; the file of a fleet has a table of these for each."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import msgspec

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.flags.declared import Must, check_fields, each, within
from twostroke.engine.process.handshake import StartEngine
from twostroke.routing.autoscaler import AutoscalerOptions


def _is_num_gpus(gpus: float) -> bool:
    """Whether Ray can set aside as many: a GPU is shared, or whole."""
    return gpus == 0 or 0.001 <= gpus <= 1 or (gpus <= 64 and gpus == int(gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How many replicas a pool has, and where."""

    replicas: Annotated[int, within(1, 64)] = 1
    """Engines of the model, each in a process of its own; with --autoscale, how many there are at
    first.
    """
    devices: Annotated[tuple[str, ...], each("a device such as cuda:1", bool)] = ()
    """Devices of the replicas, in turn; by default all are on --device. Not with Ray, which gives
    each replica its own.
    """
    num_cpus: Annotated[
        float | None, Must("from 0.001 to 4096", lambda cores: 0.001 <= cores <= 4096)
    ] = None
    """Cores that Ray sets aside for a replica, and its threads; 1 by default. Only with Ray."""
    num_gpus: Annotated[
        float | None, Must("0, a share from 0.001 to 1, or a whole number up to 64", _is_num_gpus)
    ] = None
    """GPUs that Ray sets aside for a replica, all of one machine; by default as many as
    --tensor-parallel-size says, where --device takes GPUs. Only with Ray.
    """
    drain_timeout: Annotated[
        float, Must("0 or more seconds", lambda seconds: 0 <= seconds < 1e6)
    ] = 30.0
    """Seconds that a replica which is to end may take for what it has; what is left goes on in the
    others.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def place(self) -> Hashable:
        """What says where replicas are."""
        return self.devices, self.num_cpus, self.num_gpus


class PoolPlan(NamedTuple):
    """A pool as it is wanted.

    Attributes:
        config: That of each replica, without its share of a device.
        share: Which share of its device's memory each may take, where ``config`` names no size.
        num_threads: With how many threads each computes; 0: with as many as there are cores.
    """

    config: EngineConfig
    options: PoolOptions
    scaling: AutoscalerOptions
    share: float = 1.0
    num_threads: int = 0

    @property
    def num_at_first(self) -> int:
        """Replicas that are there before the first request."""
        if self.scaling.autoscale is None:
            return self.options.replicas
        least = max(1, self.scaling.min_replicas)  # one says what the model is like
        return min(max(least, self.options.replicas), self.scaling.max_replicas)

    @property
    def most(self) -> int:
        """Replicas that there may be."""
        scaling = self.scaling
        return self.options.replicas if scaling.autoscale is None else scaling.max_replicas

    def device_of(self, number: int) -> str:
        """The device of a replica."""
        devices = self.options.devices
        return devices[number % len(devices)] if devices else self.config.model.device

    def alike(self) -> Hashable:
        """Two pools for which this is equal give the same answers, to the byte."""
        model = replace(self.config.model, device=self.config.model.device.partition(":")[0])
        return repr((model, self.config.cache.kv_cache_dtype, self.config.adapters))

    def is_another(self, former: PoolPlan) -> bool:
        """Whether replicas of the former plan have to be replaced."""
        return (self.config, self.options.place) != (former.config, former.options.place)

    def check_placement(self, *, by_ray: bool) -> None:
        """Raise ConfigError for what says where replicas are, and has no effect there."""
        options = self.options
        if by_ray and (options.devices or ":" in self.config.model.device):
            flag = "--devices" if options.devices else f"--device {self.config.model.device}"
            raise ConfigError(
                f"{flag} is for replicas of this machine: Ray gives each its own",
                hint="leave it out, and say --num-gpus if it is not one for each rank",
            )
        given = {"--num-cpus": options.num_cpus, "--num-gpus": options.num_gpus}
        for flag, value in given.items():
            if not by_ray and value is not None:
                raise ConfigError(
                    f"{flag} means nothing without Ray", hint="start with up --ray local"
                )

    def check(self) -> None:
        """Raise ConfigError for what a pool cannot do."""
        config, unused = self.config, self.scaling.without_effect()
        if unused:
            raise ConfigError(
                f"{unused[0]} means nothing without --autoscale", hint='give autoscale = "kv"'
            )
        if config.observability.record is not None or config.tiers.kv_events:
            flag = "--kv-events" if config.tiers.kv_events else "--record"
            raise ConfigError(
                f"{flag} is of one engine, and those of a pool come and go",
                hint="leave it out, or use twostroke serve",
            )


def start_of(first: StartEngine, plan: PoolPlan, number: int) -> StartEngine:
    """How a replica is started.

    Args:
        first: What all have in common.
    """
    config = plan.config
    model = replace(config.model, device=plan.device_of(number))
    cache = replace(config.cache, memory_share=config.cache.memory_share * plan.share)
    tiers = config.tiers
    if tiers.kv_disk is not None:
        tiers = replace(tiers, kv_disk=f"{tiers.kv_disk}/{number}")
    own = replace(config, model=model, cache=cache, tiers=tiers)
    threads = plan.num_threads
    return msgspec.structs.replace(first, config=own, rank=number, num_threads=threads)
