"""Routers: each picks a replica from what a gateway can see of a request and of its replicas."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from twostroke.observability.routes import RouteReason
from twostroke.routing.loads import ReplicaLoad

RouterName = Literal["round-robin", "least-loaded", "prefix-affinity", "kv-occupancy"]
# How a caller names its replicas: an index, a URL.
ReplicaId = TypeVar("ReplicaId", bound=Hashable)
# Affinity yields when its replica has more than twice the requests of the least loaded one, and
# this many more.
MAX_IMBALANCE = 8
# A shorter share of the prompt is no reason to follow it: a system prompt is common to most.
MIN_PREFIX_SHARE = 0.3


class RoutedRequest(NamedTuple):
    """What a router sees of a request.

    Attributes:
        prompt_tokens: Length of the prompt.
        segments: The prompt's beginning as (identity, tokens), in order of position. An identity
            stands for its segment and all tokens before it, so equal ones mean equal prefixes.
            The last segment may reach past the prompt, into an answer that will be cached.
    """

    prompt_tokens: int
    segments: tuple[tuple[Hashable, int], ...] = ()


class Route(NamedTuple, Generic[ReplicaId]):
    """A choice. ``prefix_tokens`` are those that a replica got before, this one or, if it is
    ``OVERLOADED``, another."""

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


class PrefixAffinity(Generic[ReplicaId]):
    """The replica that last got the longest known prefix of the request, else the least loaded.

    A prefix that is short, or whose replica is overloaded, does not count. The router remembers
    where it sent which prefix, not what the replicas still cache; it never forgets one. After
    SGLang's cache-aware router (https://docs.sglang.ai/advanced_features/router.html).
    """

    def __init__(self) -> None:
        self._replica_of: dict[Hashable, ReplicaId] = {}

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        least = least_loaded(loads)
        route = self._find_home(request, loads)
        if route is None:
            route = Route(least, RouteReason.NO_PREFIX)
        elif _is_overloaded(loads[route.replica], loads[least]):
            route = Route(least, RouteReason.OVERLOADED, route.prefix_tokens)
        for identity, _ in request.segments:
            self._replica_of[identity] = route.replica
        return route

    def _find_home(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId] | None:
        """The route to the longest known prefix; ``None`` if that is short or there is none."""
        prefix_tokens = sum(tokens for _, tokens in request.segments)
        for identity, tokens in reversed(request.segments):
            if prefix_tokens < MIN_PREFIX_SHARE * request.prompt_tokens:
                return None
            replica = self._replica_of.get(identity)
            if replica is not None and replica in loads:
                # The last segment may reach past the prompt.
                prefix_tokens = min(prefix_tokens, request.prompt_tokens)
                return Route(replica, RouteReason.PREFIX, prefix_tokens)
            prefix_tokens -= tokens
        return None


def least_loaded(loads: Mapping[ReplicaId, ReplicaLoad]) -> ReplicaId:
    """The one with the fewest unfinished requests for its share, the first of several."""
    return min(loads, key=lambda replica: loads[replica].weight)


def _is_overloaded(home: ReplicaLoad, least: ReplicaLoad) -> bool:
    return home.weight - 1 > 2 * (least.weight - 1) + MAX_IMBALANCE


class Routing(NamedTuple):
    """How requests are spread over the engines of a model.

    Attributes:
        slow_start: Seconds after which an engine that has come gets as much as the others.
    """

    router: RouterName = "prefix-affinity"
    slow_start: float = 0.0


def make_router(name: RouterName) -> Router[int]:
    """The router of that name, for replicas named by their index."""
    match name:
        case "prefix-affinity":
            return PrefixAffinity()
        case "least-loaded":
            return LeastLoaded()
        case "kv-occupancy":
            return KVOccupancy()
        case "round-robin":
            return RoundRobin()
