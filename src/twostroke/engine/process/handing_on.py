"""Which engines compute prompts for others, by what they say of themselves; and what it costs.

While a prompt is computed in several steps, the engine that is to write its answer fetches the
blocks of each step, so that after the last only its blocks are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from twostroke.core.prefix_hit import KVOffer
from twostroke.engine.clients.engine_view import EngineRole
from twostroke.engine.clients.exposition import exposition_of
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.routers import least_loaded
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


class PromptsApart:
    """Says which engines compute a prompt, which may write its answer, and which is chosen for it.

    Args:
        engines: All of them, by index; the mapping is the caller's, and changes.

    Attributes:
        moves: What it has cost so far.
        num_ahead: Requests of which blocks were fetched while their prompts were computed.
    """

    def __init__(self, engines: Mapping[int, EngineProcess], pool: PrefillPool) -> None:
        self._with, self._pool = engines, pool
        self._writers: dict[str, int] = {}  # by request: which engine fetches its blocks
        self.moves, self.num_ahead = MoveTimes(), 0

    @property
    def min_tokens(self) -> int:
        """Shorter prompts are computed where their answers are."""
        given = self._pool.plan.min_tokens
        return self.moves.least_tokens if given is None else given

    def tier_of(self, index: int) -> str | None:
        """Where others fetch what an engine computes; ``None`` of one that writes answers."""
        return self._pool.tiers.get(index) or offered_by(self._with[index].info)

    def suited(self, size: int, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Engines for prompts, if one of ``size`` tokens is long and they have room for it."""
        if size < self.min_tokens:
            return self.writers(loads)
        roomy = {index: load for index, load in loads.items() if self._has_room(index, size)}
        return roomy or self.writers(loads)

    def writers(self, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Leave out what is for prompts, unless there is nothing else."""
        return {i: load for i, load in loads.items() if self.tier_of(i) is None} or loads

    def takers(
        self, giver: int, request_id: str, loads: Mapping[int, ReplicaLoad]
    ) -> dict[int, ReplicaLoad]:
        """Engines that may go on with what one has computed: the chosen one, while it is there."""
        is_own, chosen = giver in self._pool.tiers, self._writers.get(request_id)
        takers = {
            index: load
            for index, load in loads.items()
            if self.tier_of(index) is None and (is_own or fetches(self._with[index].info))
        }
        return {chosen: takers[chosen]} if chosen in takers else takers

    def role_of(self, index: int) -> EngineRole:
        """What an engine is for."""
        if self.tier_of(index) is not None:
            return "prefill"
        return "decode" if self._pool.tiers or fetches(self._with[index].info) else "both"

    def hand_ahead(
        self,
        giver: int,
        loads: Mapping[int, ReplicaLoad],
        request_id: str,
        stream: AsyncStream,
        num_tokens: int,
    ) -> None:
        """So much of a prompt is computed: have the engine that is to write its answer fetch it."""
        tier, takers = self.tier_of(giver), self.takers(giver, request_id, loads)
        if not takers or tier is None or stream.so_far is None or stream.usage.output_tokens:
            return
        index, former = least_loaded(takers), self._writers.get(request_id)
        is_new = index != former
        if former is None:
            self.num_ahead += 1
            stream.when_ended(lambda _: self.forget(request_id))
        elif is_new:
            self.forget(request_id)
        self._writers[request_id] = index
        request = stream.so_far.request if is_new else None
        self._with[index].expect(request_id, KVOffer(tier, num_tokens), request)

    def forget(self, request_id: str, taker: int | None = None) -> None:
        """It has gone to an engine, or ended: another that was chosen for it need not wait."""
        index = self._writers.pop(request_id, None)
        if index is None or index == taker or index not in self._with:
            return
        if self._with[index].takes_requests:
            self._with[index].expect_no_more(request_id)

    def _has_room(self, index: int, num_tokens: int) -> bool:
        """Whether an engine is for prompts, and others can fetch one as long."""
        info = self._with[index].info
        if index in self._pool.tiers:
            return num_tokens * info.kv_bytes_per_token <= self._pool.plan.memory
        return room_for(info, num_tokens)

    def exposition(self, model_name: str) -> bytes:
        """Prometheus text: which prompts are computed apart, and how long it takes to move on.

        Empty where none can be.
        """
        if not any(map(self.tier_of, self._with)):
            return b""
        least = GaugeMetricFamily(
            "twostroke:prefill_min_tokens",
            "Prompts from this length on are computed apart.",
            labels=["model_name"],
        )
        least.add_metric([model_name], self.min_tokens)
        counts = [
            CounterMetricFamily(f"twostroke:{name}", what, labels=["model_name"])
            for name, what in (
                (
                    "handed_on_requests",
                    "Requests that got their next token from another engine than that of their"
                    " prompt.",
                ),
                (
                    "handing_on_seconds",
                    "Seconds from their last token of the one engine to the first of the other.",
                ),
                (
                    "handed_ahead_requests",
                    "Requests of which blocks were fetched while their prompts were computed.",
                ),
            )
        ]
        values = self.moves.num_moves, self.moves.move_seconds, self.num_ahead
        for each, value in zip(counts, values, strict=True):
            each.add_metric([model_name], value)
        return exposition_of([least, *counts])
