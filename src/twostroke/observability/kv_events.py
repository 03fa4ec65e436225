"""What the KV cache stores and removes, as a stream for routers, with vLLM's names and fields.

vLLM sends batches of these events over ZeroMQ (``vllm/distributed/kv_events.py``); here they are
JSON in server-sent events. Hashes are written as hexadecimal digits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from twostroke.core.kv_groups import group_of, is_state_key
from twostroke.core.kv_tier_config import TierChange
from twostroke.core.output import RequestOutput
from twostroke.core.request import BlockKey, Request
from twostroke.observability.observer import ObservedStep

# Kept for subscribers that were away; a batch may be a few more than that.
MAX_EVENTS = 20_000


class BlockStored(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Blocks are found from now on.

    Blocks in a tier come with their hashes only: they were stored in memory before.
    """

    block_hashes: list[str]
    parent_block_hash: str | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    block_hashes: list[str]
    medium: str


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Nothing is found any more, in no medium."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a step.

    Attributes:
        seq: Numbers the batches, without a gap.
        ts: Seconds on the engine's clock.
    """

    seq: int
    ts: float
    events: list[KVEvent]
    data_parallel_rank: int = 0


class KVEventRing:
    """The latest batches, as many as hold ``MAX_EVENTS``. One thread adds, any number read."""

    def __init__(self) -> None:
        self._batches: deque[KVEventBatch] = deque()
        self._num_kept = 0  # events in them
        self._next = 0
        self._lock = threading.Lock()

    def add(self, batch: KVEventBatch) -> None:
        with self._lock:
            self._batches.append(batch)
            self._next = batch.seq + 1
            self._num_kept += len(batch.events)
            while self._num_kept > MAX_EVENTS and len(self._batches) > 1:
                self._num_kept -= len(self._batches.popleft().events)

    def since(self, seq: int) -> list[KVEventBatch]:
        """The batches after number ``seq``, as far as they are kept; -1: all.

        A number that no batch has yet is of a server before this one: then all are new, too.
        """
        with self._lock:
            seq = seq if seq < self._next else -1
            num_new = min(self._next - 1 - seq, len(self._batches))
            # From the end: a step asks for its own, of as many batches as are kept.
            return list(islice(reversed(self._batches), max(num_new, 0)))[::-1]


class KVEventLog:
    """Follows a KV cache (``kv_cache.watcher.CacheWatcher``) and keeps the last batches.

    It is an observer of the engine, too: a step makes one batch.

    Args:
        medium: Where the cache itself lies: ``GPU`` or ``CPU``.
        num_groups: Groups of layers; the events are those of the first group's blocks.

    Attributes:
        kept: The latest batches.
    """

    def __init__(
        self, block_size: int, medium: str, clock: Callable[[], float], num_groups: int = 1
    ) -> None:
        self._num_groups = num_groups
        self._block_size, self._medium, self._clock = block_size, medium, clock
        self._pending: list[KVEvent] = []
        self._num_batches = 0
        self.kept = KVEventRing()

    # ---- the cache -------------------------------------------------------------------------------

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        if first % self._num_groups:
            return
        step, hashes = self._num_groups, request.block_hashes
        keys = hashes[first : first + len(blocks) : step]
        size, place = self._block_size, first // step
        self._pending.append(
            BlockStored(
                block_hashes=[_text(key) for key in keys],
                parent_block_hash=_text(hashes[first - step]) if first else None,
                token_ids=request.token_ids[place * size : (place + len(keys)) * size],
                block_size=size,
                medium=self._medium,
                lora_name=request.spec.adapter.rpartition("@")[0] or None,
            )
        )

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        if not group_of(key, self._num_groups):
            self._pending.append(BlockRemoved(block_hashes=[_text(key)], medium=self._medium))

    def on_found(self, request: Request, num_blocks: int) -> None:
        """Nothing was stored."""

    def on_cleared(self) -> None:
        self._pending.append(AllBlocksCleared())

    # ---- the engine ------------------------------------------------------------------------------

    def on_add(self, requests: Sequence[Request]) -> None:
        """Nothing was stored."""

    def on_step(self, step: ObservedStep) -> None:
        self._pending += _of_tiers(step.result.tier_changes, self._num_groups)
        self.flush()

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self.flush()

    def close(self) -> None:
        """What was kept stays readable."""

    def flush(self) -> None:
        """Make a batch of what has happened since the last one."""
        if self._pending:
            self.kept.add(
                KVEventBatch(seq=self._num_batches, ts=self._clock(), events=self._pending)
            )
            self._num_batches += 1
            self._pending = []


def _of_tiers(changes: Iterable[TierChange], num_groups: int) -> list[KVEvent]:
    events: list[KVEvent] = []
    for change in changes:
        stored, removed = (
            [_text(key) for key in keys if not (is_state_key(key) or group_of(key, num_groups))]
            for keys in (change.stored, change.removed)
        )
        if stored:
            events.append(
                BlockStored(
                    block_hashes=stored,
                    parent_block_hash=None,
                    token_ids=[],
                    block_size=0,
                    medium=change.tier.upper(),
                )
            )
        if removed:
            events.append(BlockRemoved(block_hashes=removed, medium=change.tier.upper()))
    return events


def _text(key: BlockKey) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)
