"""An executor's side of the tiers: carries out the saves, loads and drops of plans."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import structs

from twostroke.core.request import BlockKey
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.connector import ArrivedBlock, KVConnector, TierInfo
from twostroke.kv_tiers.peer_tier import Peers

logger = logging.getLogger(__name__)

# Copied between two looks at the clock.
CHUNK_BYTES = 4 << 20
# Copied at once to be saved: a large victim is not held in memory twice.
SAVE_BYTES = 64 << 20
# Seconds of copying that no step is spared: short steps would never get a block otherwise.
LEAST_DELAY = 0.001
# How long a step that has nothing to compute waits for a block.
IDLE_WAIT = 0.02


class BlockMemory(Protocol):
    """The executor's KV blocks as bytes."""

    @property
    def block_bytes(self) -> int: ...

    def read(self, block_ids: Sequence[int]) -> list[memoryview]:
        """A copy of each block [block_bytes], the caller's to keep."""

    def write(self, block_ids: Sequence[int], blocks: Sequence[memoryview]) -> None:
        """Fill blocks; ``blocks`` [block_bytes each] are read before it returns."""


@dataclass(slots=True)
class _Load:
    """One request's blocks that have not arrived: their places by key."""

    missing: dict[BlockKey, int] = field(default_factory=dict)
    failed: bool = False


class Transfers:
    """Moves blocks between the executor's memory and the tiers. One thread calls everything.

    Args:
        tiers: By name; closed by ``close``.
        wake: The event that the tiers set.
        max_share: How much longer a step may take because of loaded blocks.
        peers: Opens tiers that are named by an address, if there may be such.
    """

    def __init__(
        self,
        tiers: Mapping[str, KVConnector],
        memory: BlockMemory,
        wake: threading.Event,
        max_share: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
        *,
        peers: Peers | None = None,
    ) -> None:
        self.tiers, self._peers = dict(tiers), peers
        self._memory, self._wake, self._share, self._clock = memory, wake, max_share, clock
        self._chunk = max(1, CHUNK_BYTES // max(1, memory.block_bytes))
        self._saved_at_once = max(1, SAVE_BYTES // max(1, memory.block_bytes))
        self._loads: dict[str, _Load] = {}
        self._refused: defaultdict[str, list[BlockKey]] = defaultdict(list)  # since the last step
        self._num_loaded: defaultdict[str, int] = defaultdict(int)  # in this step, by tier
        self._load_seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self, plan: StepPlan) -> None:
        """Before the pass writes anything: read what is saved, forget, and ask for what is loaded.

        A save that fails costs the block its place in the tier, nothing else.
        """
        for load in plan.block_loads:
            places = self._loads.setdefault(load.request_id, _Load()).missing
            places.update(zip(load.keys, load.block_ids, strict=True))
        for save in plan.block_saves:
            for start in range(0, len(save.keys), self._saved_at_once):
                end = start + self._saved_at_once
                self._save(save.tier, save.block_ids[start:end], save.keys[start:end])
        for drop in plan.block_drops:
            if drop.tier in self.tiers:  # else a peer of which nothing was loaded yet
                self.tiers[drop.tier].drop(drop.removed)
        for load in plan.block_loads:
            self._tier(load.tier).load(load.request_id, load.keys)

    def advance(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """After the pass, which took ``seconds``: copy what has arrived, as far as there is time.

        Fills in ``loaded``, ``failed_loads`` and ``tier_changes``. Without a pass it waits a moment
        for the first block, so that a loop with nothing else to do does not spin.
        """
        if self._loads:
            if plan.scheduled:
                self._copy_until(self._clock() + max(LEAST_DELAY, seconds * self._share))
            else:
                self._copy_until(self._clock() + IDLE_WAIT, wait=True)
            for request_id, load in list(self._loads.items()):
                if not load.missing:
                    del self._loads[request_id]
                    (result.failed_loads if load.failed else result.loaded).append(request_id)
        for name, tier in self.tiers.items():
            change = tier.changes()
            if count := self._num_loaded.pop(name, 0):
                seconds = self._load_seconds.pop(name)
                change = structs.replace(change, num_loaded=count, load_seconds=seconds)
            if refused := self._refused.pop(name, []):
                change = structs.replace(change, refused=refused)
            if change.stored or change.removed or refused or count:
                result.tier_changes.append(change)

    @property
    def infos(self) -> list[TierInfo]:
        """What the scheduler must know of the tiers."""
        infos = [tier.info for tier in self.tiers.values()]
        return infos if self._peers is None else [*infos, self._peers.info]

    def close(self) -> None:
        for tier in self.tiers.values():
            tier.close()

    def _tier(self, name: str) -> KVConnector:
        tier = self.tiers.get(name)
        if tier is None:
            assert self._peers is not None, "the scheduler names none that there is not"
            tier = self.tiers[name] = self._peers.open(name)
        return tier

    def _save(self, tier: str, block_ids: Sequence[int], keys: Sequence[BlockKey]) -> None:
        try:
            blocks = self._memory.read(block_ids)
        except (RuntimeError, MemoryError):
            logger.exception("%d KV blocks could not be saved", len(block_ids))
            self._refused[tier] += keys
            return
        save = self.tiers[tier].save
        pairs = zip(keys, blocks, strict=True)
        self._refused[tier] += [key for key, block in pairs if not save(key, block)]

    def _copy_until(self, end: float, *, wait: bool = False) -> None:
        """Copy what arrives before ``end``, or what has arrived by now; always a chunk of it."""
        while any(load.missing for load in self._loads.values()):
            self._wake.clear()
            there_was = self._copy_chunk()
            left = end - self._clock()
            if left <= 0 or not (there_was or wait):
                return
            if not there_was:
                self._wake.wait(left)

    def _copy_chunk(self) -> bool:
        """Copy some of what has arrived; whether there was anything."""
        there_was = False
        for name, tier in self.tiers.items():
            began = self._clock()
            if arrived := tier.arrived(self._chunk):
                self._copy(arrived)
                fetching = sum(block.seconds for block in arrived)
                self._load_seconds[name] += self._clock() - began + fetching
                self._num_loaded[name] += sum(block.data is not None for block in arrived)
                there_was = True
        return there_was

    def _copy(self, arrived: Sequence[ArrivedBlock]) -> None:
        """Fill blocks. A write that fails ends its loads, and nothing of them is ever read."""
        block_ids, blocks, loads = [], [], []
        for block in arrived:
            load = self._loads[block.ticket]
            place = load.missing.pop(block.key)
            if block.data is None:
                load.failed = True
            else:
                block_ids.append(place)
                blocks.append(block.data)
                loads.append(load)
        if not blocks:
            return
        try:
            self._memory.write(block_ids, blocks)
        except (RuntimeError, MemoryError):
            logger.exception("%d KV blocks could not be loaded", len(blocks))
            for load in loads:
                load.failed = True
