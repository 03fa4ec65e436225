"""Routers: each picks a replica from what a gateway can see of a request and of its replicas."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from twostroke.observability.routes import RouteReason

RouterName = Literal["round-robin", "least-loaded", "prefix-affinity"]
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

    ``loads`` maps every replica that may be chosen, at least one, to its unfinished requests. Its
    order decides between equals. Same calls in the same order, same choices.
    """

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> Route[ReplicaId]: ...


class RoundRobin(Generic[ReplicaId]):
    """One replica after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> Route[ReplicaId]:
        replicas = list(loads)
        replica = replicas[self._turn % len(replicas)]
        self._turn = (self._turn + 1) % len(replicas)
        return Route(replica, RouteReason.TURN)


class LeastLoaded(Generic[ReplicaId]):
    """The replica with the fewest unfinished requests, the first of several."""

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> Route[ReplicaId]:
        return Route(min(loads, key=loads.__getitem__), RouteReason.LEAST_LOADED)


class PrefixAffinity(Generic[ReplicaId]):
    """The replica that last got the longest known prefix of the request, else the least loaded.

    A prefix that is short, or whose replica is overloaded, does not count. The router remembers
    where it sent which prefix, not what the replicas still cache; it never forgets one. After
    SGLang's cache-aware router (https://docs.sglang.ai/advanced_features/router.html).
    """

    def __init__(self) -> None:
        self._replica_of: dict[Hashable, ReplicaId] = {}

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> Route[ReplicaId]:
        least_loaded = min(loads, key=loads.__getitem__)
        route = self._find_home(request, loads)
        if route is None:
            route = Route(least_loaded, RouteReason.NO_PREFIX)
        elif loads[route.replica] > 2 * loads[least_loaded] + MAX_IMBALANCE:
            route = Route(least_loaded, RouteReason.OVERLOADED, route.prefix_tokens)
        for identity, _ in request.segments:
            self._replica_of[identity] = route.replica
        return route

    def _find_home(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, int]
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


def make_router(name: RouterName) -> Router[int]:
    """The router of that name, for replicas named by their index."""
    match name:
        case "prefix-affinity":
            return PrefixAffinity()
        case "least-loaded":
            return LeastLoaded()
        case "round-robin":
            return RoundRobin()
