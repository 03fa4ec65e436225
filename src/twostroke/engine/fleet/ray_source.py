"""Replicas that Ray places: on the machines of a cluster, or on a local one."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import socket
import threading
import time
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from twostroke.core.errors import ConfigError, EngineDeadError
from twostroke.core.network.address import Address, is_address
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.supervised import SupervisedSource
from twostroke.engine.messages import Close
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.frames import encode_frame, has_come, receive_frame
from twostroke.engine.process.handshake import EngineRefused, StartAnswer, StartEngine
from twostroke.engine.process.process_link import END_SECONDS
from twostroke.engine.process.socket_link import SocketLink
from twostroke.engine.process.start_watch import PATIENCE
from twostroke.engine.workers.connect import open_connection

logger = logging.getLogger(__name__)
LOCAL = "local"
REPLICA = "twostroke.ray_replica"
REACH_SECONDS = 5.0
PLACE_SECONDS = 600.0  # in which a cluster may start a machine
SAY_SECONDS = 5.0  # of waiting for a place, until that is said
OPEN_SECONDS = 120.0  # in which an actor's process starts, and listens
STORE_BYTES = 2**27  # no replica uses Ray's store of objects
_ANSWERS: msgspec.msgpack.Decoder[StartAnswer] = msgspec.msgpack.Decoder(StartAnswer)


class Resources(NamedTuple):
    """What Ray sets aside for a replica, all on one machine."""

    cpus: float
    gpus: float

    @classmethod
    def of(cls, plan: PoolPlan, has_gpus: bool) -> Resources:
        """What a pool's file says; by default a GPU for each rank, where there are any."""
        options, model = plan.options, plan.config.model
        on_gpu = model.device == "cuda" or (model.device == "auto" and has_gpus)
        ranks = model.tensor_parallel_size if on_gpu else 0
        return cls(
            cpus=1.0 if options.num_cpus is None else options.num_cpus,
            gpus=float(ranks) if options.num_gpus is None else options.num_gpus,
        )

    def bundle(self) -> dict[str, float]:
        """Ray's words for it."""
        return {name: x for name, x in (("CPU", self.cpus), ("GPU", self.gpus)) if x}

    def __str__(self) -> str:
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundle().items())


def on_ray(settings: StartEngine, plan: PoolPlan, resources: Resources, local: bool) -> StartEngine:
    """How a replica is started that has its cores and GPUs to itself.

    Args:
        local: Whether all replicas share the cores of this machine, as ``plan`` divides them.
    """
    config, threads = settings.config, plan.num_threads
    if plan.options.num_cpus is not None or not local:
        threads = max(1, int(resources.cpus))
    if resources.gpus >= 1:  # no other replica takes of their memory
        share = config.cache.memory_share / plan.share
        config = replace(config, cache=replace(config.cache, memory_share=share))
    return msgspec.structs.replace(settings, config=config, num_threads=threads)


class RayCluster:
    """A connection to Ray, for the life of this process.

    Args:
        address: ``local``: a cluster of this machine that ends with this process. Else what
            ``ray.init`` takes: ``auto``, or ``HOST:PORT`` of the cluster's head.
        num_cpus: How many a local cluster has at least, whatever the machine has.

    Raises:
        ConfigError: There is no such cluster.
    """

    def __init__(self, address: str, num_cpus: int) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told of what runs here
        self.is_local = address == LOCAL
        self.token = secrets.token_bytes(32)
        settings: dict[str, Any] = {"logging_level": logging.WARNING}
        if self.is_local:
            settings |= {
                "address": LOCAL,
                "include_dashboard": False,
                "num_cpus": max(num_cpus, os.cpu_count() or 1),
                "object_store_memory": STORE_BYTES,
            }
        else:
            settings |= {"address": address}
        try:
            _check_reach(address)
            ray.init(**settings)
        except (OSError, RayError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"there is no Ray cluster at {address}: {_reason(error)}",
                hint="start one with `ray start --head`, or give --ray local",
            ) from error

    @cached_property
    def has_gpus(self) -> bool:
        """Whether any machine that is there now has GPUs."""
        return bool(_amount("GPU"))

    def check(self, wanted: Resources) -> None:
        """Raise ConfigError for what a local cluster will never have room for."""
        for name, amount in wanted.bundle().items():
            if self.is_local and amount > _amount(name):
                raise ConfigError(
                    f"a replica needs {wanted}, and this machine has {_amount(name):g} {name}",
                    hint="give num-cpus and num-gpus in the pool, or a cluster as --ray HOST:PORT",
                )


def _is_placed(group: PlacementGroup, seconds: float) -> bool:
    """Wait for that, at most for so long. Raises EngineDeadError if Ray has dropped the group."""
    try:
        return bool(group.wait(seconds))
    except Exception as error:  # Ray has none of its own for that
        hint = (
            "see the log of Ray; if its daemon on this machine has ended, start it and this again"
        )
        raise EngineDeadError(f"Ray finds no place: {_reason(error)}", hint=hint) from error


def _amount(name: str, *, free: bool = False) -> float:
    """How much of something all machines have together."""
    ask: Any = ray.available_resources if free else ray.cluster_resources
    return float(ask().get(name, 0.0))


def _check_reach(address: str) -> None:
    """Raise OSError where nothing listens, which Ray would wait minutes for."""
    if is_address(address):
        socket.create_connection(Address.parse(address), REACH_SECONDS).close()


class RaySource(SupervisedSource):
    """Implements ``EngineSource``: actors that Ray places, one after another for ever."""

    def __init__(self, settings: StartEngine, cluster: RayCluster, resources: Resources) -> None:
        super().__init__(settings)
        self._cluster, self._resources = cluster, resources

    def _start(self) -> StartedEngine:
        name = f"{self.settings.served_model_name or 'twostroke'}-{self.settings.rank}"
        self._cluster.check(self._resources)
        group = placement_group([self._resources.bundle()], strategy="STRICT_PACK", name=name)
        connection = None
        try:
            self._wait_for_place(group, name)
            actor = self._make_actor(group)
            connection, place = self._connect(actor)
            connection.sendall(encode_frame(self.settings))
            answer = _receive_answer(connection, actor)
        except BaseException as error:
            if connection is not None:
                connection.close()
            _remove(group)
            if isinstance(error, GetTimeoutError):
                raise EngineDeadError(
                    f"the replica's actor did not start within {OPEN_SECONDS:g} s",
                    hint="see the log of Ray; the machine may be too busy",
                ) from error
            if isinstance(error, RayError):
                raise EngineDeadError(
                    f"the replica's actor has ended before it was ready: {_reason(error)}",
                    hint="see the log of Ray",
                ) from error
            raise
        if isinstance(answer, EngineRefused):
            connection.close()
            _remove(group)
            raise answer.to_exception()
        link = RayLink(connection, group, f"process {place.pid} on {place.host}")
        return StartedEngine(link, answer.facts)

    def _wait_for_place(self, group: PlacementGroup, name: str) -> None:
        """Raises EngineDeadError if there is none for long."""
        if _is_placed(group, SAY_SECONDS):
            return
        free = f"{_amount('CPU', free=True):g} CPU, {_amount('GPU', free=True):g} GPU"
        message = "replica %s waits for a machine with %s; free in all: %s"
        logger.warning(message, name, self._resources, free)
        if not _is_placed(group, PLACE_SECONDS):
            raise EngineDeadError(
                f"Ray has had no room for {self._resources} for {PLACE_SECONDS:g} s",
                hint="add a machine to the cluster, or end what else runs there",
            )

    def _make_actor(self, group: PlacementGroup) -> Any:
        replica = importlib.import_module(REPLICA).RayReplica  # with what runs models
        strategy = PlacementGroupSchedulingStrategy(placement_group=group)
        options = {
            "num_cpus": self._resources.cpus,
            "num_gpus": self._resources.gpus,
            "scheduling_strategy": strategy,
            "max_concurrency": 2,  # it answers while it serves
            "max_restarts": 0,  # another follows, which may be placed elsewhere
        }
        make = ray.remote(replica).options(**options)
        return make.remote(self._cluster.token, self.settings.num_threads)

    def _connect(self, actor: Any) -> tuple[socket.socket, Any]:
        """Raises RayError, TwostrokeError."""
        place = ray.get(actor.place.remote(), timeout=OPEN_SECONDS)
        actor.serve.remote()
        address = Address(place.host, place.port)
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                token, version = self._cluster.token, self.settings.version
                return open_connection(address, token, version)[0], place
            except EngineDeadError as error:  # it does not let anyone in yet
                if time.monotonic() > deadline:
                    raise EngineDeadError(
                        f"the replica on {place.host} is not reached: {error.message}",
                        hint="machines of the cluster must reach each other on all ports",
                    ) from error
                time.sleep(0.05)


class RayLink(SocketLink):
    """A connection to a replica; what Ray has set aside for it is free once this ends."""

    def __init__(self, connection: socket.socket, group: PlacementGroup, name: str) -> None:
        super().__init__(connection)
        self._group: PlacementGroup | None = group
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def why_ended(self) -> str | None:
        return f"the connection to {self.name} has ended" if self._ended.is_set() else None

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def kill(self) -> None:
        self._hang_up()
        self._ended.set()
        self._leave()

    def drain(self) -> None:
        super().drain()
        self._leave()

    def close(self) -> None:
        self.send(Close())
        self._closed = True
        deadline = time.monotonic() + END_SECONDS
        while not self.wait(0.02) and time.monotonic() < deadline:
            while self._receive():
                pass
        self.kill()
        self._release()

    def _leave(self) -> None:
        """Have Ray end the actor, and give its place to others; on a thread, since it asks Ray."""
        group, self._group = self._group, None
        if group is not None:
            threading.Thread(target=_remove, args=(group,), daemon=True).start()


def _remove(group: PlacementGroup) -> None:
    with contextlib.suppress(RayError, RuntimeError):  # Ray has ended, or is not reached
        remove_placement_group(group)


def _receive_answer(connection: socket.socket, actor: Any) -> StartAnswer:
    """Wait while the engine loads, which may take minutes; an actor that does nothing has hung.

    Raises:
        EngineDeadError: It has ended, or hangs.
        RayError: It has ended.
    """
    while not has_come(connection, 1.0):
        try:
            ray.get(actor.answer.remote(), timeout=PATIENCE)
        except GetTimeoutError as error:
            raise EngineDeadError(
                f"the replica's actor did nothing for {PATIENCE:g} s while it started",
                hint="see the log; something may have stopped it",
            ) from error
    connection.setblocking(True)
    data = receive_frame(connection)
    if data is None:
        raise EngineDeadError(
            "the replica's actor has ended before it was ready", hint="see the log"
        )
    return _ANSWERS.decode(data)


def _reason(error: Exception) -> str:
    """What Ray says, in a line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
