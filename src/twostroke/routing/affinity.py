"""Routers that send requests where what they have in common with others lies already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from hashlib import blake2b
from typing import Generic

from twostroke.observability.routes import RouteReason
from twostroke.routing.loads import ReplicaId, ReplicaLoad
from twostroke.routing.routers import Route, RoutedRequest, least_loaded

# Affinity yields when its replica has more than twice the requests of the least loaded one, and
# this many more.
MAX_IMBALANCE = 8
# A shorter share of the prompt is no reason to follow it: a system prompt is common to most.
MIN_PREFIX_SHARE = 0.3
# Of 64 tokens each: more than the caches of most fleets hold, in some 200 MB.
MAX_SEGMENTS = 1_000_000


class PrefixAffinity(Generic[ReplicaId]):
    """The replica that last got the longest known prefix of the request, else the least loaded.

    A prefix that is short, or whose replica is overloaded, does not count. The router remembers
    where it sent which prefix, not what the replicas still cache. After SGLang's cache-aware router
    (https://docs.sglang.ai/advanced_features/router.html).

    Args:
        max_segments: How many it remembers; those that no request had for longest are forgotten.
    """

    def __init__(self, max_segments: int = MAX_SEGMENTS) -> None:
        self._max_segments = max_segments
        self._replica_of: OrderedDict[Hashable, ReplicaId] = OrderedDict()

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        least, home = least_loaded(loads), self._find_home(request, loads)
        if home is None:
            route = Route(least, RouteReason.NO_PREFIX)
        elif _is_overloaded(loads[home.replica], loads[least]):
            route = Route(least, RouteReason.OVERLOADED, home.prefix_tokens)
        else:
            route = home
        self._remember(request, route.replica)
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

    def _remember(self, request: RoutedRequest, replica: ReplicaId) -> None:
        for identity, _ in reversed(request.segments):  # so that the end of a prefix goes first
            self._replica_of[identity] = replica
            self._replica_of.move_to_end(identity)
        while len(self._replica_of) > self._max_segments:
            self._replica_of.popitem(last=False)


class KVAware(PrefixAffinity[ReplicaId]):
    """The replica whose cache holds most of the prompt, by what it has told; of equals the least
    loaded.

    Where none holds enough it goes by what was sent where, since a prompt is cached only once it
    has been computed.
    """

    def _find_home(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId] | None:
        cached = {replica: request.num_cached(replica) for replica in loads}
        most = max(loads, key=lambda replica: (cached[replica], -loads[replica].weight))
        if cached[most] and cached[most] >= MIN_PREFIX_SHARE * request.prompt_tokens:
            return Route(most, RouteReason.CACHED, cached[most])
        return super()._find_home(request, loads)


class SessionAffinity(Generic[ReplicaId]):
    """One replica for all requests of a session, and for each without one the least loaded.

    Rendezvous hashing (Thaler and Ravishankar, 1998): routers that share nothing agree, and when a
    replica comes or goes, only its own sessions move. An overloaded replica keeps its sessions.
    """

    def route(
        self, request: RoutedRequest, loads: Mapping[ReplicaId, ReplicaLoad]
    ) -> Route[ReplicaId]:
        session = request.session
        if session is None:
            return Route(least_loaded(loads), RouteReason.NO_SESSION)
        return Route(max(loads, key=lambda each: _draw(session, each)), RouteReason.SESSION)


def _draw(session: Hashable, replica: Hashable) -> bytes:
    """A number that depends on both alone, in every process."""
    return blake2b(f"{session!r} {replica!r}".encode(), digest_size=8).digest()


def _is_overloaded(home: ReplicaLoad, least: ReplicaLoad) -> bool:
    return home.weight - 1 > 2 * (least.weight - 1) + MAX_IMBALANCE
