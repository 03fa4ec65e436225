"""Replicas with roles, at places that may stand empty for a while."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf

from twostroke.routing.slow_start import SlowStart
from twostroke.simulator.deployment.fleet_options import ReplicaDeath, Role
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.pool import ScalingEvent
from twostroke.simulator.fleet.replica import Replica


class ReplicaPlaces:
    """Implements ``Pool``: a replica at each place, but for the time after it died.

    A replica that dies has its step under way behind it: a simulated step cannot be undone. What
    takes its place is a new replica with empty caches. ReplicaPlaces are paid for all the time.

    Args:
        make: Makes the replica of a place, at time 0.
        roles: What the replica of each place does.
        failures: By time.
        slow_start: Seconds after which one that took a place gets as much as the others.
    """

    def __init__(
        self,
        make: Callable[[int], Replica],
        roles: Sequence[Role],
        failures: Sequence[ReplicaDeath] = (),
        slow_start: float = 0.0,
    ) -> None:
        self._make, self._place_roles = make, roles
        self._slow_start: SlowStart[int] = SlowStart(slow_start)
        self.replicas: list[Replica] = []
        self.roles: list[Role] = []
        self._at: list[int | None] = [None] * len(roles)  # the replica at each place
        # When, whether it is a death (of what happens at once, returns come first), where, and for
        # how long.
        self._changes = [(each.at, True, each.place, each.lasts) for each in failures]
        heapq.heapify(self._changes)
        for place in range(len(roles)):
            self._start(place, 0.0)
        self.num_blocks = sum(replica.kv.pool.num_blocks for replica in self.replicas)

    @property
    def next_change(self) -> float:
        return self._changes[0][0] if self._changes else inf

    def change(self, num_held: int) -> list[int]:
        now, dies, place, lasts = heapq.heappop(self._changes)
        if not dies:
            self._start(place, now)
            self._slow_start.note_start(len(self.replicas) - 1, now)
            return []
        index, self._at[place] = self._at[place], None
        if index is not None:
            self._slow_start.forget(index)
        if lasts < inf:
            heapq.heappush(self._changes, (now + lasts, False, place, 0.0))
        return [] if index is None else [index]

    def loads(self, now: float, role: Role = "both") -> ReplicaLoads:
        indices = [
            index
            for index in self._at
            if index is not None and (role == "both" or self.roles[index] in (role, "both"))
        ]
        return ReplicaLoads(self.replicas, indices, now, self._slow_start)

    def ask_for_one(self, now: float) -> None:
        """A replica comes back when it does."""

    def replica_seconds(self, end: float, role: Role = "both") -> float:
        return end * sum(role in ("both", each) for each in self._place_roles)

    @property
    def most(self) -> int:
        return len(self._place_roles)

    @property
    def events(self) -> Sequence[ScalingEvent]:
        return ()

    def _start(self, place: int, now: float) -> None:
        self._at[place] = len(self.replicas)
        replica = self._make(place)
        replica.clock.advance_to(now)
        replica.notes_parts = self._place_roles[place] == "prefill"
        self.replicas.append(replica)
        self.roles.append(self._place_roles[place])
