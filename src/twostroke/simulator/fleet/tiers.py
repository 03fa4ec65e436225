"""Tiers below a simulated KV cache: blocks without bytes, and the time that theirs would take."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from msgspec import structs

from twostroke.core.kv_tier_config import KVTierConfig, TierChange
from twostroke.core.request import BlockKey
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_cache.state_room import MAX_PART_BYTES
from twostroke.kv_tiers.memory_tier import MemoryTier
from twostroke.simulator.fleet.peers import PEERS, SimulatedPeers, Transfer

NOTHING = memoryview(b"")


class Bandwidths(NamedTuple):
    """Bytes per second of one device's copies.

    ``host``: to and from the memory of its host. ``disk``: from a disk into that memory.
    """

    host: float
    disk: float


class _Arriving(NamedTuple):
    """A load under way: when it has arrived, and how many blocks of each tier it brings."""

    time: float
    num_blocks: Mapping[str, int]
    seconds: float


class SimulatedTiers:
    """What ``kv_tiers.transfers.Transfers`` does, on a virtual clock.

    Saves delay their step by a copy to the host; writing to the disk happens after it. Loads wait
    for one another and for no step. What is where is kept by the live engine's ``MemoryTier``.

    Args:
        peers: Where blocks are that other replicas have computed.
    """

    def __init__(
        self,
        config: KVTierConfig,
        info: ExecutorInfo,
        bandwidths: Bandwidths,
        peers: SimulatedPeers | None = None,
    ) -> None:
        self.peers = peers
        self._fetched: dict[str, Transfer] = {}  # from peers, by request
        alone = info.num_state_parts > 0 and not info.block_bytes
        self.block_bytes = MAX_PART_BYTES if alone else max(1, info.block_bytes)
        self._bandwidths = bandwidths
        sizes = {
            "swap": config.swap_space if config.preemption != "recompute" else 0,
            "host": config.kv_host_memory,
            "disk": config.kv_disk_size if config.kv_disk is not None else 0,
        }
        self.infos = [
            TierInfo(
                name=name,
                num_blocks=size // self.block_bytes,
                block_bytes=self.block_bytes,
                saves_filled=name == "disk",
                for_swap=name == "swap",
                states_alone=alone,
            )
            for name, size in sizes.items()
            if size
        ]
        self._tiers = {
            tier.name: MemoryTier(
                TierInfo(name=tier.name, num_blocks=tier.num_blocks, for_swap=tier.for_swap)
            )
            for tier in self.infos
        }
        if peers is not None:
            self.infos.append(peers.info)
        self._arriving: dict[str, _Arriving] = {}
        self._failed: list[str] = []
        self._refused: dict[str, list[BlockKey]] = {}
        self._link_free = 0.0

    def begin(self, plan: StepPlan, now: float) -> float:
        """Carry out saves and drops, begin loads. Returns by how much the step is longer."""
        num_saved = 0
        for save in plan.block_saves:
            tier = self._tiers[save.tier]
            refused = [key for key in save.keys if not tier.save(key, NOTHING)]
            self._refused.setdefault(save.tier, []).extend(refused)
            num_saved += len(save.keys) - len(refused)
        for drop in plan.block_drops:
            if drop.tier in self._tiers:  # what peers have is theirs
                self._tiers[drop.tier].drop(drop.removed)
        if self.peers is not None:
            for request_id in plan.new_requests:
                self.peers.forget(request_id)
        for load in plan.block_loads:
            self._begin_load(load.request_id, load.tier, load.keys, now)
        return num_saved * self.block_bytes / self._bandwidths.host

    def next_arrival(self) -> float | None:
        """When the next load has arrived, or is known to be lost."""
        return min(
            (min(load.time, self._lost_at(name)) for name, load in self._arriving.items()),
            default=None,
        )

    def _lost_at(self, request_id: str) -> float:
        """When the sender of a load dies, if that is before it has arrived."""
        fetched = self._fetched.get(request_id)
        if fetched is None or fetched.sender.died >= fetched.arrives:
            return inf
        return fetched.sender.died

    def end(self, result: StepResult, now: float) -> None:
        """Report what has arrived by ``now``, and what the tiers have got and lost."""
        loaded: dict[str, tuple[int, float]] = {}
        for request_id, load in list(self._arriving.items()):
            if self._fetched and self._lost_at(request_id) <= now:
                del self._arriving[request_id], self._fetched[request_id]
                result.failed_loads.append(request_id)
            elif load.time <= now:
                del self._arriving[request_id]
                self._fetched.pop(request_id, None)
                result.loaded.append(request_id)
                total = sum(load.num_blocks.values())
                for name, count in load.num_blocks.items():
                    blocks, seconds = loaded.get(name, (0, 0.0))
                    loaded[name] = blocks + count, seconds + load.seconds * count / total
        result.failed_loads += self._failed
        self._failed = []
        for name, tier in self._tiers.items():
            blocks, seconds = loaded.get(name, (0, 0.0))
            refused = self._refused.pop(name, [])
            change = structs.replace(
                tier.changes(), refused=refused, num_loaded=blocks, load_seconds=seconds
            )
            if change.stored or change.removed or refused or blocks:
                result.tier_changes.append(change)
        if PEERS in loaded:
            blocks, seconds = loaded[PEERS]
            change = TierChange(PEERS, num_loaded=blocks, load_seconds=seconds)
            result.tier_changes.append(change)

    def _fetch(self, request_id: str, num_blocks: int, now: float) -> None:
        """Load from a peer."""
        assert self.peers is not None
        transfer = self.peers.begin(request_id, num_blocks, now)
        if request_id in self._failed:
            return  # with another of its transfers
        if transfer is None:
            self._failed.append(request_id)
            self._arriving.pop(request_id, None)
            return
        self._fetched[request_id] = transfer
        self._add(request_id, PEERS, num_blocks, transfer.arrives, transfer.seconds)

    def _add(
        self, request_id: str, tier: str, num_blocks: int, arrives: float, seconds: float
    ) -> None:
        """Note a load under way, with what the request loads from other tiers."""
        former = self._arriving.get(request_id, _Arriving(0.0, {}, 0.0))
        counts = {**former.num_blocks, tier: former.num_blocks.get(tier, 0) + num_blocks}
        time = max(former.time, arrives)
        self._arriving[request_id] = _Arriving(time, counts, former.seconds + seconds)

    def _begin_load(self, request_id: str, tier: str, keys: list[bytes | int], now: float) -> None:
        if tier == PEERS:
            self._fetch(request_id, len(keys), now)
            return
        self._tiers[tier].load(request_id, keys)
        is_lost = any(block.data is None for block in self._tiers[tier].arrived(len(keys)))
        if request_id in self._failed:
            return  # with another of its transfers
        if is_lost:
            self._failed.append(request_id)
            self._arriving.pop(request_id, None)
            return
        rate = self._bandwidths.host
        if tier == "disk":
            rate = min(rate, self._bandwidths.disk)
        seconds = len(keys) * self.block_bytes / rate
        self._link_free = max(self._link_free, now) + seconds
        self._add(request_id, tier, len(keys), self._link_free, seconds)
