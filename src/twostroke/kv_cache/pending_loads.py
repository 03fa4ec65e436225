"""Blocks that are being filled from a tier: held, and in no prefix until they have arrived."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twostroke.core.request import BlockKey, Request
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.states import States
from twostroke.kv_cache.watcher import CacheWatcher


class PendingLoad(NamedTuple):
    """Blocks that are being filled from a tier, and blocks of the same prefix that wait with them.

    ``new_blocks`` belong to the load alone and get ``keys`` when it has succeeded; ``kept_blocks``
    have their content already. ``request`` asked for them; it may end meanwhile.
    """

    request: Request
    new_blocks: list[int]
    keys: list[BlockKey]
    kept_blocks: list[int]


class PendingLoads:
    """The loads under way, by request id.

    Args:
        states: States of recurrent layers, which come with blocks.
        watchers: Are told what lookups find from now on; the list is the manager's.
    """

    def __init__(self, pool: BlockPool, states: States, watchers: Sequence[CacheWatcher]) -> None:
        self._pool, self._states, self._watchers = pool, states, watchers
        self._loads: dict[str, PendingLoad] = {}

    def __len__(self) -> int:
        return len(self._loads)

    def __contains__(self, request_id: str) -> bool:
        """Whether blocks are on their way for a request, be it that it has ended meanwhile."""
        return request_id in self._loads

    def begin(self, request: Request, keys: list[BlockKey], kept_blocks: list[int]) -> list[int]:
        """Take free blocks for ``keys``; the caller has seen to it that there are enough.

        ``kept_blocks`` are not evicted meanwhile. No lookup finds the new blocks before ``end``.
        """
        assert request.request_id not in self._loads
        for block in kept_blocks:
            self._pool.hold(block)
        blocks = [self._pool.allocate() for _ in keys]
        self._loads[request.request_id] = PendingLoad(request, blocks, keys, kept_blocks)
        return blocks

    def end(self, request_id: str, *, loaded: bool) -> None:
        """Let lookups find what was loaded, if it was, as the blocks that were used last."""
        load = self._loads.pop(request_id)
        self._states.end_load(request_id, loaded=loaded)
        places = {key: place for place, key in enumerate(load.request.block_hashes)}
        for block, key in zip(load.new_blocks, load.keys):
            if loaded and self._pool.index(block, key):
                for watcher in self._watchers:
                    watcher.on_stored(load.request, places[key], [block])
        for block in reversed([*load.kept_blocks, *load.new_blocks]):
            self._pool.release(block)

    def forget_contents(self) -> None:
        """The prefix cache was cleared: what is on its way ends in blocks without content."""
        self._loads = {name: load._replace(keys=[]) for name, load in self._loads.items()}

    def held_blocks(self) -> Iterator[int]:
        """Every block that a load holds, checked for what must hold (tests call it often)."""
        for load in self._loads.values():
            assert not any(map(self._pool.is_shared, load.new_blocks)), "a loading block is shared"
            yield from load.new_blocks
            yield from load.kept_blocks
