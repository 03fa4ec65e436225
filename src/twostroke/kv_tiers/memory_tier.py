"""Blocks in host memory of a bounded size."""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from twostroke.core.kv_tier_config import TierChange
from twostroke.core.request import BlockKey
from twostroke.kv_cache.connector import ArrivedBlock, TierInfo
from twostroke.kv_tiers.change_log import ChangeLog


class MemoryTier:
    """Implements ``KVConnector``. A save and a load cost one copy in memory, at once.

    The memory is touched as it fills. What was used least recently goes first, unless the tier is
    for swap.
    """

    def __init__(self, info: TierInfo) -> None:
        self._info = info
        self._size = info.block_bytes
        self._memory = mmap.mmap(-1, max(1, info.num_blocks * self._size))
        self._slots: OrderedDict[BlockKey, int] = OrderedDict()  # the least recently used first
        self._free = list(reversed(range(info.num_blocks)))
        self._requested: deque[tuple[str, BlockKey]] = deque()
        self._log = ChangeLog(info.name)

    @property
    def info(self) -> TierInfo:
        return self._info

    def save(self, key: BlockKey, block: memoryview) -> bool:
        if key in self._slots:
            self._slots.move_to_end(key)
            self._log.store(key)
            return True
        if not self._free:
            if self._info.for_swap or not self._slots:
                return False
            self.drop([next(iter(self._slots))])
        slot = self._free.pop()
        self._memory[slot * self._size : (slot + 1) * self._size] = block
        self._slots[key] = slot
        self._log.store(key)
        return True

    def load(self, ticket: str, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._requested.append((ticket, key))
            if key in self._slots:
                self._slots.move_to_end(key)

    def arrived(self, limit: int) -> list[ArrivedBlock]:
        count = min(limit, len(self._requested))
        return [self._fetch(*self._requested.popleft()) for _ in range(count)]

    def drop(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            slot = self._slots.pop(key, None)
            if slot is not None:
                self._free.append(slot)
                self._log.remove(key)

    def has(self, key: BlockKey) -> bool:
        return key in self._slots

    def copy_of(self, key: BlockKey) -> memoryview | None:
        """A block, the caller's to keep, if it is there."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        self._slots.move_to_end(key)
        return memoryview(self._memory[slot * self._size : (slot + 1) * self._size])

    def changes(self) -> TierChange:
        return self._log.take()

    def close(self) -> None:
        self._slots.clear()
        self._requested.clear()

    def _fetch(self, ticket: str, key: BlockKey) -> ArrivedBlock:
        slot = self._slots.get(key)
        if slot is None:
            self._log.remove(key)
            return ArrivedBlock(ticket, key, None)
        data = memoryview(self._memory)[slot * self._size : (slot + 1) * self._size]
        return ArrivedBlock(ticket, key, data)
