"""The replicas of a fleet, and which of them take requests: all, always."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.replica import Replica


class ScalingEvent(msgspec.Struct, frozen=True):
    """One decision that changed something.

    Attributes:
        time: In seconds since the start.
        before: Replicas that took requests or were starting.
        wanted: How many there are to be.
    """

    time: float
    before: int
    wanted: int


class Pool(Protocol):
    """The seam between a fleet and what starts and ends its replicas."""

    @property
    def replicas(self) -> Sequence[Replica]:
        """All that there are or were, by index; more may come."""
        ...

    @property
    def next_change(self) -> float:
        """When ``change`` is to be called next, in seconds since the start."""
        ...

    @property
    def roles(self) -> Sequence[Role]:
        """What each of ``replicas`` does."""
        ...

    @property
    def num_blocks(self) -> int:
        """KV blocks of all replicas that there were at once, at most."""
        ...

    def change(self, num_held: int) -> Sequence[int]:
        """Start and end replicas; at ``next_change``, when none has steps before it.

        Args:
            num_held: Requests that no replica was there for.

        Returns:
            Indices of replicas that have died: their requests are not theirs any more.
        """
        ...

    def loads(self, now: float, role: Role = "both") -> ReplicaLoads:
        """Count requests, of replicas that take some at ``now``: not before the latest change.

        Args:
            role: What they do; ``both`` stands for any role.
        """
        ...

    def ask_for_one(self, now: float) -> None:
        """A request has come, and there is no replica that takes it."""
        ...

    def replica_seconds(self, end: float, role: Role = "both") -> float:
        """How long replicas of a role were paid for until the run's ``end``, all together."""
        ...

    @property
    def most(self) -> int:
        """Most replicas that there were at once."""
        ...

    @property
    def events(self) -> Sequence[ScalingEvent]:
        """What was decided, in order."""
        ...


class FixedPool:
    """Implements ``Pool`` for replicas that are there from the first second to the last."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas

    @property
    def next_change(self) -> float:
        return math.inf

    @property
    def roles(self) -> Sequence[Role]:
        return ["both"] * len(self.replicas)

    @property
    def num_blocks(self) -> int:
        return len(self.replicas) * self.replicas[0].kv.pool.num_blocks

    def change(self, num_held: int) -> Sequence[int]:
        return ()

    def loads(self, now: float, role: Role = "both") -> ReplicaLoads:
        return ReplicaLoads(self.replicas, range(len(self.replicas)), now)

    def ask_for_one(self, now: float) -> None:
        """There always is one."""

    def replica_seconds(self, end: float, role: Role = "both") -> float:
        return end * len(self.replicas)

    @property
    def most(self) -> int:
        return len(self.replicas)

    @property
    def events(self) -> Sequence[ScalingEvent]:
        return ()
