"""Which engines compute prompts for others, by what they say of themselves; and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.engine.clients.engine_view import EngineRole
from twostroke.engine.clients.exposition import exposition_of
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.routing.loads import ReplicaLoad
from twostroke.timing.move_times import MoveTimes


class PrefillPlan(NamedTuple):
    """How many engines compute prompts for the others (DistServe, arXiv:2401.09670).

    Attributes:
        min_tokens: Shorter prompts are computed where their answers are; by default what has been
            measured tells how short.
        memory: Bytes in which each keeps blocks for the others. So are prompts that exceed it.
    """

    num_engines: int = 0
    min_tokens: int | None = None
    memory: int = 1 << 30


class PrefillPool(NamedTuple):
    """Engines that compute prompts for the others.

    Attributes:
        tiers: By index of each, where the others fetch the blocks that it has computed.
    """

    tiers: Mapping[int, str] = {}
    plan: PrefillPlan = PrefillPlan()


NO_POOL = PrefillPool()


def offered_by(info: ExecutorInfo) -> str | None:
    """The address where an engine gives others the blocks that it has computed, if it does."""
    return next((tier.place for tier in info.tiers if tier.place), None)


def fetches(info: ExecutorInfo) -> bool:
    """Whether an engine fetches blocks from an address that comes with a request."""
    return any(tier.by_address for tier in info.tiers)


def room_for(info: ExecutorInfo, num_tokens: int) -> bool:
    """Whether what an engine offers holds a prompt's blocks."""
    tier = next((tier for tier in info.tiers if tier.place), None)
    num_blocks = -(-num_tokens // info.block_size) * info.kv_groups.count
    return tier is not None and num_blocks <= tier.num_blocks


class PrefillRoles:
    """Which engines compute prompts for which others, and from which length on.

    Args:
        pool: Those that were started for it; workers say of themselves what they are for.
        engines: All engines by index, as they come and go.

    Attributes:
        moves: What it has cost to move on.
    """

    def __init__(self, pool: PrefillPool, engines: Mapping[int, EngineProcess]) -> None:
        self._pool, self._engines = pool, engines
        self.moves = MoveTimes()

    def tier_of(self, index: int) -> str | None:
        """Where others fetch what an engine computes; ``None`` of one that writes answers."""
        return self._pool.tiers.get(index) or offered_by(self._engines[index].info)

    def suited(self, num_tokens: int, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Engines for prompts, if this one is long enough and they have room for its blocks."""
        if num_tokens < self._min_tokens:
            return self.writers(loads)
        roomy = {index: load for index, load in loads.items() if self._has_room(index, num_tokens)}
        return roomy or self.writers(loads)

    def writers(self, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Leave out what is for prompts, unless there is nothing else."""
        return {i: load for i, load in loads.items() if self.tier_of(i) is None} or loads

    def takers(self, giver: int, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Engines that can write the answer to a prompt that this one has computed."""
        is_own = giver in self._pool.tiers
        return {
            index: load
            for index, load in loads.items()
            if self.tier_of(index) is None and (is_own or fetches(self._engines[index].info))
        }

    def role_of(self, index: int) -> EngineRole:
        """What an engine is for."""
        if self.tier_of(index) is not None:
            return "prefill"
        return "decode" if self._pool.tiers or fetches(self._engines[index].info) else "both"

    def exposition(self, model_name: str) -> bytes:
        """Metrics of the moves, where there can be some."""
        if not any(self.tier_of(index) for index in self._engines):
            return b""
        return moves_exposition(model_name, self.moves, self._min_tokens)

    @property
    def _min_tokens(self) -> int:
        given = self._pool.plan.min_tokens
        return self.moves.least_tokens if given is None else given

    def _has_room(self, index: int, num_tokens: int) -> bool:
        """Whether an engine is for prompts, and others can fetch one as long."""
        info = self._engines[index].info
        if index in self._pool.tiers:
            return num_tokens * info.kv_bytes_per_token <= self._pool.plan.memory
        return room_for(info, num_tokens)


def moves_exposition(model_name: str, moves: MoveTimes, min_tokens: int) -> bytes:
    """Prometheus text: which prompts are computed apart, and how long it takes to move on."""
    least = GaugeMetricFamily(
        "twostroke:prefill_min_tokens",
        "Prompts from this length on are computed apart.",
        labels=["model_name"],
    )
    least.add_metric([model_name], min_tokens)
    count = CounterMetricFamily(
        "twostroke:handed_on_requests",
        "Requests that got their next token from another engine than that of their prompt.",
        labels=["model_name"],
    )
    count.add_metric([model_name], moves.num_moves)
    seconds = CounterMetricFamily(
        "twostroke:handing_on_seconds",
        "Seconds from their last token of the one engine to the first of the other.",
        labels=["model_name"],
    )
    seconds.add_metric([model_name], moves.move_seconds)
    return exposition_of([least, count, seconds])
