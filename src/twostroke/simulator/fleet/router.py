"""Which replica gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twostroke.simulator.fleet.options import RouterName
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.workloads.base import RequestSpec

# Affinity yields when its replica has more than twice the requests of the least loaded one, and
# this many more.
MAX_IMBALANCE = 8
# Share of a prompt that has to be known somewhere to follow it there: a system prompt that all
# share ties nobody.
LEAST_KNOWN = 0.3


class Router(Protocol):
    """Chooses one of ``replicas`` for a request that arrives at ``spec.arrival``. It sees what a
    gateway could see.
    """

    def route(self, spec: RequestSpec, replicas: Sequence[Replica]) -> int: ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, spec: RequestSpec, replicas: Sequence[Replica]) -> int:
        chosen, self._next = self._next, (self._next + 1) % len(replicas)
        return chosen


class LeastLoaded:
    """To the replica with the fewest unfinished requests, the first of several."""

    def route(self, spec: RequestSpec, replicas: Sequence[Replica]) -> int:
        loads = [replica.num_unfinished(spec.arrival) for replica in replicas]
        return loads.index(min(loads))


class PrefixAffinity:
    """To the replica that got the longest known beginning of this request last, unless it is short
    or that overloaded.

    The router remembers where it sent which content, not what the replicas still cache. After
    SGLang's cache-aware router (https://docs.sglang.ai/advanced_features/router.html).
    """

    def __init__(self) -> None:
        self._home: dict[int, int] = {}

    def route(self, spec: RequestSpec, replicas: Sequence[Replica]) -> int:
        loads = [replica.num_unfinished(spec.arrival) for replica in replicas]
        least = min(loads)
        chosen = loads.index(least)
        end = sum(
            tokens for _, tokens in spec.segments
        )  # past the prompt, where its answer is known too
        for identity, tokens in reversed(spec.segments):
            if end < LEAST_KNOWN * spec.prompt_tokens:
                break
            home = self._home.get(identity)
            if home is not None:
                if loads[home] <= 2 * least + MAX_IMBALANCE:
                    chosen = home
                break
            end -= tokens
        for identity, _ in spec.segments:
            self._home[identity] = chosen
        return chosen


def make_router(name: RouterName) -> Router:
    if name == "prefix-affinity":
        return PrefixAffinity()
    return LeastLoaded() if name == "least-loaded" else RoundRobin()
