"""From the name of a router to one."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.routing.affinity import KVAware, PrefixAffinity, SessionAffinity
from twostroke.routing.routers import KVOccupancy, LeastLoaded, RoundRobin, Router, RouterName


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
        case "kv-aware":
            return KVAware()
        case "session":
            return SessionAffinity()
        case "least-loaded":
            return LeastLoaded()
        case "kv-occupancy":
            return KVOccupancy()
        case "round-robin":
            return RoundRobin()
