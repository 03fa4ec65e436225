"""Routers: each picks a replica from what a gateway can see of a request and of its replicas."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

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


class Router(Protocol[ReplicaId]):
    """The seam. ``route`` may change the router's own state and nothing else.

    ``loads`` maps every replica that may be chosen, at least one, to its unfinished requests. Its
    order decides between equals. Same calls in the same order, same choices.
    """

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> ReplicaId: ...


class RoundRobin(Generic[ReplicaId]):
    """One replica after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> ReplicaId:
        replicas = list(loads)
        replica = replicas[self._turn % len(replicas)]
        self._turn = (self._turn + 1) % len(replicas)
        return replica


class LeastLoaded(Generic[ReplicaId]):
    """The replica with the fewest unfinished requests, the first of several."""

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> ReplicaId:
        return min(loads, key=loads.__getitem__)


class PrefixAffinity(Generic[ReplicaId]):
    """The replica that last got the longest known prefix of the request, else the least loaded.

    A prefix that is short, or whose replica is overloaded, does not count. The router remembers
    where it sent which prefix, not what the replicas still cache; it never forgets one. After
    SGLang's cache-aware router (https://docs.sglang.ai/advanced_features/router.html).
    """

    def __init__(self) -> None:
        self._replica_of: dict[Hashable, ReplicaId] = {}

    def route(self, request: RoutedRequest, loads: Mapping[ReplicaId, int]) -> ReplicaId:
        least_loaded = min(loads, key=loads.__getitem__)
        home = self._find_home(request, loads)
        if home is not None and loads[home] <= 2 * loads[least_loaded] + MAX_IMBALANCE:
            replica = home
        else:
            replica = least_loaded
        for identity, _ in request.segments:
            self._replica_of[identity] = replica
        return replica

    def _find_home(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, int]
    ) -> ReplicaId | None:
        """The replica of the longest known prefix; ``None`` if that is short or there is none."""
        prefix_tokens = sum(tokens for _, tokens in request.segments)
        for identity, tokens in reversed(request.segments):
            if prefix_tokens < MIN_PREFIX_SHARE * request.prompt_tokens:
                return None
            replica = self._replica_of.get(identity)
            if replica is not None and replica in loads:
                return replica
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
