"""One record per routed request: where it went, and why there."""

from __future__ import annotations

from enum import Enum

import msgspec


class RouteReason(str, Enum):
    """Why a request goes to a replica.

    ``TURN``: it was the next one. ``LEAST_LOADED``: it has the fewest unfinished requests.
    ``LEAST_FULL``: its KV cache is the least full. ``PREFIX``: it got the same beginning before.
    Else the least loaded one is taken, since ``NO_PREFIX``: no replica got enough of the beginning;
    or ``OVERLOADED``: the one that did has too many requests.
    """

    TURN = "turn"
    LEAST_LOADED = "least_loaded"
    LEAST_FULL = "least_full"
    PREFIX = "prefix"
    NO_PREFIX = "no_prefix"
    OVERLOADED = "overloaded"


class RouteEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One request's way to a replica.

    Attributes:
        time: When it was routed, in seconds on the replicas' common clock.
        replica: Its index.
        reason: Why it was this one.
        prompt_tokens: Length of its prompt.
        prefix_tokens: How many of these a replica got before.
        load: Unfinished requests of the replica, without this one.
        least_load: The load of the replica that has least.
        most_load: The load of the replica that has most.
        refused: Whether the replica refused it early.
    """

    time: float
    request_id: str
    replica: int
    reason: RouteReason
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    load: int = 0
    least_load: int = 0
    most_load: int = 0
    refused: bool = False
