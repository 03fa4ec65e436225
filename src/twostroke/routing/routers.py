"""Routers: each picks a replica from what a gateway can see of a request and of its replicas."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, Literal, NamedTuple, Protocol, cast

from twostroke.observability.routes import RouteReason
from twostroke.routing.loads import RankedLoads, ReplicaId, ReplicaLoad

RouterName = Literal[
    "round-robin", "least-loaded", "prefix-affinity", "kv-aware", "kv-occupancy", "session"
]


def none_cached(replica: Hashable) -> int:
    """How many tokens a replica holds of which nothing is told."""
    return 0


class RoutedRequest(NamedTuple):
    """What a router sees of a request.

    Attributes:
        prompt_tokens: Length of the prompt.
        segments: The prompt's beginning as (identity, tokens), in order of position. An identity
            stands for its segment and all tokens before it, so equal ones mean equal prefixes.
            The last segment may reach past the prompt, into an answer that will be cached.
        session: What it has in common with others of its conversation or user, if it is known.
        num_cached: How many of the prompt's first tokens a replica's cache holds, as far as it has
            told. Asked only by routers that go by it, since it takes longer.
    """

    prompt_tokens: int
    segments: tuple[tuple[Hashable, int], ...] = ()
    session: Hashable | None = None
    num_cached: Callable[[Any], int] = none_cached


class Route(NamedTuple, Generic[ReplicaId]):
    """A choice. ``prefix_tokens`` are those that a replica got before, or holds: this one or, if it
    is ``OVERLOADED``, another."""

    replica: ReplicaId
    reason: RouteReason
    prefix_tokens: int = 0


class Router(Protocol[ReplicaId]):
    """The seam. ``route`` may change the router's own state and nothing else.

    ``loads`` maps every replica that may be chosen, at least one, to how busy it is. Its order
    decides between equals. Same calls in the same order, same choices.
    """

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]: ...


class RoundRobin(Generic[ReplicaId]):
    """One replica after the other. One with a part of a share is passed over in the other turns."""

    def __init__(self) -> None:
        self._turn = 0
        self._due: dict[ReplicaId, float] = {}  # of a request, to those that were passed over

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        replicas = list(loads)
        while True:  # all shares are above 0
            replica = replicas[self._turn % len(replicas)]
            self._turn = (self._turn + 1) % len(replicas)
            due = self._due.pop(replica, 0.0) + loads[replica].share
            if due > 1 - 1e-9:  # tenths do not add up to 1
                return Route(replica, RouteReason.TURN)
            self._due = {each: part for each, part in self._due.items() if each in loads}
            self._due[replica] = due


class LeastLoaded(Generic[ReplicaId]):
    """The replica with the fewest unfinished requests, the first of several."""

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        return Route(least_loaded(loads), RouteReason.LEAST_LOADED)


class KVOccupancy(Generic[ReplicaId]):
    """The replica that is least full with the request's prompt, of equals the least loaded.

    Long and short requests count by the memory they take, and what waits counts like what runs: so
    a replica with a queue is fuller than one without.
    """

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        def rank(replica: ReplicaId) -> tuple[float, float]:
            load = loads[replica]
            return load.fullness(request.prompt_tokens) / load.share, load.weight

        return Route(min(loads, key=rank), RouteReason.LEAST_FULL)


def least_loaded(loads: Mapping[ReplicaId, ReplicaLoad]) -> ReplicaId:
    """The one with the fewest unfinished requests for its share, the first of several."""
    if isinstance(loads, RankedLoads):
        return cast(RankedLoads[ReplicaId], loads).least()
    return min(loads, key=lambda replica: loads[replica].weight)
