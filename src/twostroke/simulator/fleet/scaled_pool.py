"""Replicas that an autoscaler starts and drains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from twostroke.routing.autoscaler import Autoscaler, AutoscalerOptions, ReplicaReading
from twostroke.routing.slow_start import SlowStart
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.pool import ScalingEvent
from twostroke.simulator.fleet.replica import Replica


@dataclass(slots=True)
class _Member:
    """A replica from its start to its end.

    Attributes:
        started: Since when it is paid for.
        ready: When it takes requests; they may be ahead.
        draining: It takes no more.
        num_read: How many of its steps readings have seen to their end.
        read_at: When it was read last.
    """

    index: int
    replica: Replica
    started: float
    ready: float
    draining: bool = False
    num_read: int = 0
    read_at: float = 0.0


class ScaledPool:
    """Implements ``Pool``.

    A replica that is ended finishes what it has. Its cache is gone then: the next that starts is a
    new one.

    Args:
        make: Makes the replica of an index, at time 0.
        num_replicas: How many are ready at time 0.
        start_seconds: From a decision until a replica takes requests; paid for, too.
        slow_start: Seconds after which one that was started gets as much as the others.
    """

    def __init__(
        self,
        make: Callable[[int], Replica],
        options: AutoscalerOptions,
        num_replicas: int,
        start_seconds: float,
        slow_start: float = 0.0,
    ) -> None:
        self._make, self._start_seconds = make, start_seconds
        self._slow_start: SlowStart[int] = SlowStart(slow_start)
        self._autoscaler = Autoscaler(options)
        self._interval = options.autoscale_interval
        self.replicas: list[Replica] = []
        self.events: list[ScalingEvent] = []
        self.most = 0
        self._members: list[_Member] = []  # not ended
        self._ended: list[tuple[float, float]] = []  # from when to when others were paid for
        self._next_decision, self._now = self._interval, 0.0
        for _ in range(num_replicas):
            self._start(0.0, ready=0.0)

    @property
    def next_change(self) -> float:
        starting = (each.ready for each in self._members if each.ready > self._now)
        return min([self._next_decision, *starting])

    @property
    def roles(self) -> list[Role]:
        return ["both"] * len(self.replicas)

    @property
    def num_blocks(self) -> int:
        return self.most * self.replicas[0].kv.pool.num_blocks

    def change(self, num_held: int) -> tuple[int, ...]:
        self._now = now = self.next_change
        if now < self._next_decision:
            return ()  # one is ready: that is all
        self._next_decision = now + self._interval
        self._end_drained()
        taking = self._taking(now)
        starting = [each for each in self._members if each.ready > now]
        readings = [self._read(each, now) for each in taking]
        wanted = self._autoscaler.decide(now, readings, len(starting), num_held)
        present = len(taking) + len(starting)
        if wanted != present:
            self.events.append(ScalingEvent(now, present, wanted))
        for _ in range(wanted - present):
            self._add(now)
        # The newest go first, before they are ready, then those with least to finish.
        leaving = [*reversed(starting), *sorted(taking, key=lambda each: self._rest(each, now))]
        for member in leaving[: max(0, present - wanted)]:
            self._drain(member, now)
        return ()

    def loads(self, now: float, role: Role = "both") -> ReplicaLoads:
        taking = [each.index for each in self._taking(now)]
        return ReplicaLoads(self.replicas, taking, now, self._slow_start)

    def ask_for_one(self, now: float) -> None:
        if all(each.draining for each in self._members):
            self._next_decision = now

    def replica_seconds(self, end: float, role: Role = "both") -> float:
        paid = [*self._ended, *((each.started, end) for each in self._members)]
        return math.fsum(max(0.0, min(until, end) - started) for started, until in paid)

    def _taking(self, now: float) -> list[_Member]:
        return [each for each in self._members if each.ready <= now and not each.draining]

    def _add(self, now: float) -> None:
        """One more: one that drains goes on, if there is one; else a new one starts."""
        draining = [each for each in self._members if each.draining]
        if draining:
            draining[-1].draining = False
        else:
            self._start(now, ready=now + self._start_seconds)

    def _start(self, now: float, ready: float) -> None:
        index = len(self.replicas)
        replica = self._make(index)
        replica.clock.advance_to(ready)
        if ready:
            self._slow_start.note_start(index, ready)
        self.replicas.append(replica)
        self._members.append(_Member(index, replica, now, ready, read_at=ready))
        self.most = max(self.most, len(self._members))

    def _drain(self, member: _Member, now: float) -> None:
        if member.replica.has_work():
            member.draining = True
        else:
            log = member.replica.log  # which may be ahead
            self._end(member, max(now, log.end[-1]) if len(log) else now)

    def _end_drained(self) -> None:
        for member in [each for each in self._members if each.draining]:
            if not member.replica.has_work():
                self._end(member, member.replica.clock.now)

    def _end(self, member: _Member, now: float) -> None:
        self._members.remove(member)
        self._slow_start.forget(member.index)
        self._ended.append((member.started, now))

    def _rest(self, member: _Member, now: float) -> tuple[int, int]:
        return member.replica.num_unfinished(now), -member.index

    def _read(self, member: _Member, now: float) -> ReplicaReading:
        """What it has done since it was read last, and what it has to do."""
        replica, log, since = member.replica, member.replica.log, member.read_at
        seconds, computed = 0.0, 0
        for step in range(member.num_read, len(log)):
            seconds += max(0.0, min(log.end[step], now) - max(log.start[step], since))
            if log.end[step] <= now:  # else the next reading has its rest, and its tokens
                computed += log.prefill_tokens[step]
                member.num_read = step + 1
        member.read_at = now
        kv, prompts = replica.demand()
        ttft = None if prompts else 0.0
        if computed and prompts:
            ttft = prompts * seconds / computed
        busy = min(1.0, seconds / (now - since)) if now > since else 0.0
        return ReplicaReading(kv, busy, replica.num_unfinished(now), ttft)
