"""Block tables: allocation, prefix reuse, sharing with copy-on-write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from twostroke.core.errors import RequestTooLargeError, context_overflow
from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.request import BlockKey, Request, RequestStatus
from twostroke.kv_cache.block_hash import extend_block_hashes, prefix_hashes
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.pins import Pins
from twostroke.kv_cache.watcher import CacheWatcher


class Prefix(NamedTuple):
    """Keys and values that exist already: the first ``num_tokens`` tokens, in ``blocks``.

    ``looked_up``: whether the prefix cache was asked for them.
    """

    blocks: list[int]
    num_tokens: int
    looked_up: bool = False


class TableChange(NamedTuple):
    """What an allocation changed: the table from ``first_new_block`` on is ``new_block_ids``.

    ``block_copies`` are (source, target) pairs that the executor carries out before it writes.
    """

    first_new_block: int
    new_block_ids: list[int]
    block_copies: list[tuple[int, int]]


NO_PREFIX = Prefix([], 0)
UNCHANGED = TableChange(0, [], [])


class PendingLoad(NamedTuple):
    """Blocks that are being filled from a tier, and blocks of the same prefix that wait with them.

    ``new_blocks`` belong to the load alone and get ``keys`` when it has succeeded; ``kept_blocks``
    have their content already. ``request`` asked for them; it may end meanwhile.
    """

    request: Request
    new_blocks: list[int]
    keys: list[BlockKey]
    kept_blocks: list[int]


class BlockTable(msgspec.Struct):
    """One request's blocks in order of position.

    The first ``num_indexed`` are in the prefix cache's index; the executor knows the first
    ``num_sent``. Slots below ``num_writable`` lie in blocks that the executor knows; those of them
    that are not computed yet lie in blocks that no other table holds. ``enters_index`` is off once
    the prefix cache was cleared: no lookup would get past the blocks that are gone.
    """

    blocks: list[int]
    num_indexed: int = 0
    num_sent: int = 0
    num_writable: int = 0
    enters_index: bool = True


class KVCacheManager:
    """Owns every block table. Slots past ``num_computed_tokens`` hold nothing that may be read.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block.
        model_id: Part of each prefix-cache key.
        enable_prefix_caching: Whether blocks of earlier requests can be found again.
    """

    groups = ONE_GROUP

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        model_id: str = "",
        enable_prefix_caching: bool = True,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.pins = Pins(self.pool)
        self.prefix_queries = 0  # tokens looked up
        self.prefix_hits = 0  # tokens found
        self._model_id = model_id
        self._caching = enable_prefix_caching
        self._tables: dict[str, BlockTable] = {}
        self._loads: dict[str, PendingLoad] = {}
        self._watchers: list[CacheWatcher] = []

    def watch(self, watcher: CacheWatcher) -> None:
        """Tell ``watcher`` from now on what the prefix cache gets and loses."""
        self._watchers.append(watcher)
        self.pool.on_evict = self._on_evict

    # ---- sizes -----------------------------------------------------------------------------------

    @property
    def caches_prefixes(self) -> bool:
        return self._caching

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def block_ids(self, request: Request) -> list[int]:
        """The live table of a request that holds blocks. Read only."""
        return self._tables[request.request_id].blocks

    def num_blocks_missing(self, request: Request) -> int:
        """Blocks to be allocated before all known tokens of a running request have a slot."""
        return max(0, self.blocks_for(request.num_tokens) - len(self.block_ids(request)))

    def num_unused_slots(self, requests: Iterable[Request]) -> int:
        """Slots that running requests' tables reserve and that hold no token."""
        return sum(
            len(self.block_ids(request)) * self.block_size - request.num_computed_tokens
            for request in requests
        )

    # ---- a request's way through the cache -------------------------------------------------------

    def find_prefix(self, request: Request) -> Prefix:
        """The longest prefix whose keys and values exist.

        Never all tokens: the last one's logits are needed, so it has to be computed. One of several
        samples takes its leader's prompt blocks while the leader holds them, the partly filled last
        one included; otherwise whole blocks are looked up by content.
        """
        leader = request.leader
        if leader is not None and leader.status is RequestStatus.RUNNING:
            shared = request.num_prompt_tokens - 1
            if request.num_output_tokens == 0 and leader.num_computed_tokens >= shared:
                return Prefix(self.block_ids(leader)[: self.blocks_for(shared)], shared)
        if not (self._caching and request.reads_prefix_cache):
            return NO_PREFIX
        num_candidates = (request.num_tokens - 1) // self.block_size
        hashes = extend_block_hashes(request, num_candidates, self.block_size, self._model_id)
        blocks: list[int] = []
        for content in hashes[:num_candidates]:
            block = self.pool.find(content)
            if block is None:
                break
            blocks.append(block)
        return Prefix(blocks, len(blocks) * self.block_size, looked_up=True)

    def has_room(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether all known tokens of a waiting request fit beside ``reserved`` blocks."""
        new_blocks = self.blocks_for(request.num_tokens) - prefix.num_tokens // self.block_size
        revived = sum(map(self.pool.is_free, prefix.blocks))
        return new_blocks + revived + reserved <= self.pool.num_free

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Give a waiting request a table that begins with ``prefix``."""
        assert request.request_id not in self._tables, "a waiting request holds no blocks"
        for block in prefix.blocks:
            self.pool.hold(block)
        if request.leader is not None and (table := self._tables.get(request.leader.request_id)):
            table.num_writable = 0  # the block that the leader writes may no longer be its own
        num_indexed = prefix.num_tokens // self.block_size if self._caching else 0
        self._tables[request.request_id] = BlockTable(list(prefix.blocks), num_indexed)
        request.num_computed_tokens = prefix.num_tokens
        if prefix.looked_up and request.num_preemptions == 0:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += prefix.num_tokens
            for watcher in self._watchers:
                watcher.on_found(request, len(prefix.blocks))

    def allocate_slots(self, request: Request, num_tokens: int) -> TableChange | None:
        """Make slots for the next ``num_tokens`` tokens of a running request.

        A block that other tables hold too is copied before it is written. Indexed blocks are full
        and so never written again. ``None``, and nothing is changed, if free blocks do not suffice.
        """
        table = self._tables[request.request_id]
        end = request.num_computed_tokens + num_tokens
        if end <= table.num_writable:
            return UNCHANGED
        blocks, written = table.blocks, request.num_computed_tokens // self.block_size
        num_new = max(0, self.blocks_for(end) - len(blocks))
        is_shared = written < len(blocks) and self.pool.is_shared(blocks[written])
        if num_new + is_shared > self.pool.num_free:
            return None
        block_copies = []
        if is_shared:
            source, blocks[written] = blocks[written], self.pool.allocate()
            self.pool.release(source)
            block_copies.append((source, blocks[written]))
            table.num_sent = min(table.num_sent, written)
        blocks += [self.pool.allocate() for _ in range(num_new)]
        first_new, table.num_sent = table.num_sent, len(blocks)
        table.num_writable = len(blocks) * self.block_size
        return TableChange(first_new, blocks[first_new:], block_copies)

    def commit(self, request: Request) -> None:
        """After a step: put the blocks that it filled into the prefix cache's index."""
        table = self._tables[request.request_id]
        self._index_full_blocks(request, table, request.num_computed_tokens // self.block_size)

    def free(self, request: Request, *, discard: bool = False) -> None:
        """Release all blocks of a request, the last first: its tail is evicted before its start.

        Args:
            discard: Its content may be wrong: lookups find no more what it alone holds.
        """
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        for block in reversed(table.blocks):
            if discard and not self.pool.is_shared(block):
                self._discard(block)
            self.pool.release(block)

    # ---- blocks that come from tiers -------------------------------------------------------------

    def full_blocks(self, request: Request) -> tuple[list[int], list[BlockKey]]:
        """A running request's blocks whose tokens are all computed, and their contents."""
        count = request.num_computed_tokens // self.block_size
        hashes = extend_block_hashes(request, count, self.block_size, self._model_id)
        return self.block_ids(request)[:count], hashes[:count]

    def is_loading(self, request_id: str) -> bool:
        """Whether blocks are on their way for a request, be it that it has ended meanwhile."""
        return request_id in self._loads

    @property
    def num_loads(self) -> int:
        return len(self._loads)

    def find_loadable(
        self, request: Request, prefix: Prefix, is_in_tier: Callable[[BlockKey], bool]
    ) -> tuple[list[BlockKey], list[int], int]:
        """What tiers would add to a cached prefix: keys to be loaded, blocks of the longer prefix
        that are here already, and how many tokens need not be computed then.
        """
        keys, kept_blocks = list[BlockKey](), list(prefix.blocks)
        num_candidates = (request.num_tokens - 1) // self.block_size
        for key in request.block_hashes[len(prefix.blocks) : num_candidates]:
            block = self.pool.find(key)
            if block is not None:
                kept_blocks.append(block)
            elif is_in_tier(key):
                keys.append(key)
            else:
                break
        return keys, kept_blocks, len(keys) * self.block_size

    def begin_load(
        self, request: Request, keys: list[BlockKey], kept_blocks: list[int]
    ) -> list[int]:
        """Take free blocks for ``keys``; the caller has seen to it that there are enough.

        ``kept_blocks`` are not evicted meanwhile. Nobody finds the new blocks before ``end_load``.
        """
        assert request.request_id not in self._loads
        for block in kept_blocks:
            self.pool.hold(block)
        blocks = [self.pool.allocate() for _ in keys]
        self._loads[request.request_id] = PendingLoad(request, blocks, keys, kept_blocks)
        return blocks

    def end_load(self, request_id: str, *, loaded: bool) -> None:
        """Let lookups find what was loaded, if it was, as the blocks that were used last."""
        load = self._loads.pop(request_id)
        places = {key: place for place, key in enumerate(load.request.block_hashes)}
        for block, key in zip(load.new_blocks, load.keys):
            if loaded and self.pool.index(block, key):
                for watcher in self._watchers:
                    watcher.on_stored(load.request, places[key], [block])
        for block in reversed([*load.kept_blocks, *load.new_blocks]):
            self.pool.release(block)

    # ---- pinned prefixes -------------------------------------------------------------------------

    def pin(
        self, token_ids: Sequence[int], cache_salt: str, until: float, tenant: str = ""
    ) -> list[BlockKey] | None:
        """Evict the full blocks of a prefix only after all others, up to ``until``.

        They still give way where running requests have no room otherwise. Returns their keys, or
        ``None``, and nothing is changed, if that would be too many for the tenant (``Pins``).
        """
        keys = prefix_hashes(token_ids, self.block_size, self._model_id, cache_salt)
        return keys if self.pins.pin(keys, until, tenant) else None

    def clear(self) -> int:
        """Forget all prefixes, pinned ones too. Returns how many blocks.

        Running requests go on, and nothing of them is found later either.
        """
        for watcher in self._watchers:
            watcher.on_cleared()
        for table in self._tables.values():
            table.enters_index = False
        # What is on its way ends in blocks without content.
        self._loads = {name: load._replace(keys=[]) for name, load in self._loads.items()}
        self.pins.clear()
        return self.pool.clear()

    def _on_evict(self, block: int, key: BlockKey) -> None:
        for watcher in self._watchers:
            watcher.on_removed(block, key)

    def _discard(self, block: int) -> None:
        """Let no lookup find a held block's content, which may be wrong, here or elsewhere."""
        if (key := self.pool.content(block)) is not None:
            for watcher in self._watchers:
                watcher.on_removed(block, key, is_wrong=True)
        self.pool.unindex(block)

    # ---- runs of equal steps ---------------------------------------------------------------------

    def advance(self, requests: Sequence[Request], steps: int) -> list[tuple[int, int]]:
        """Let each request compute one more token in each of ``steps`` steps, all at once.

        Blocks are allocated and indexed in the order in which single steps would: in each step
        first the allocations, then the blocks that are full, both in the order of ``requests``. For
        ``Scheduler.advance``, which says what has to hold. Returns the number of free and of cached
        blocks after each step.
        """
        size = self.block_size
        # By the step, modulo a block, in which a request begins a block and the last one is full.
        due: list[list[tuple[Request, BlockTable]]] = [[] for _ in range(size)]
        tables = [self._tables[request.request_id] for request in requests]
        for request, table in zip(requests, tables):
            due[-request.num_computed_tokens % size].append((request, table))
            request.num_computed_tokens += steps
        counts = []
        for step in range(steps):
            for _, table in due[step % size]:
                table.blocks.append(self.pool.allocate())
            for request, table in due[(step + 1) % size]:
                self._index_full_blocks(request, table, len(table.blocks))
            counts.append((self.pool.num_free, self.pool.num_cached))
        for table in tables:
            table.num_sent = len(table.blocks)
            table.num_writable = table.num_sent * size
        return counts

    def _index_full_blocks(self, request: Request, table: BlockTable, num_full: int) -> None:
        if not (self._caching and table.enters_index) or num_full <= table.num_indexed:
            return
        hashes = extend_block_hashes(request, num_full, self.block_size, self._model_id)
        for position in range(table.num_indexed, num_full):
            if self.pool.index(table.blocks[position], hashes[position]):
                for watcher in self._watchers:
                    watcher.on_stored(request, position, [table.blocks[position]])
        table.num_indexed = num_full

    def _held(self, table: BlockTable) -> list[int]:
        """The blocks of a table."""
        return table.blocks

    def check_integrity(self) -> None:
        """Assert that reference counts, tables, free list and index agree (tests call it often)."""
        holders = Counter(b for table in self._tables.values() for b in self._held(table))
        for load in self._loads.values():
            holders.update([*load.new_blocks, *load.kept_blocks])
            assert not any(map(self.pool.is_shared, load.new_blocks)), "a loading block is shared"
        for request_id, table in self._tables.items():
            held = self._held(table)
            assert len(set(held)) == len(held), f"{request_id} holds a block twice"
            assert table.num_indexed <= len(table.blocks), f"{request_id}: indexed too much"
        self.pool.check_integrity(holders)


def check_fits(
    max_total_tokens: int, num_blocks: int, block_size: int, groups: KVGroups = ONE_GROUP
) -> None:
    """Raise ``RequestTooLargeError``, with the numbers, for a request larger than the cache."""
    needed = groups.most_blocks(max_total_tokens, block_size)
    if needed > num_blocks:
        available = groups.longest_request(num_blocks, block_size) or 0
        raise RequestTooLargeError(
            context_overflow(
                available,
                f"the request needs {needed} KV blocks for {max_total_tokens} tokens, and the cache"
                f" has {num_blocks}",
            ),
            needed=max_total_tokens,
            available=available,
            param="max_tokens",
            hint="shorten the prompt, lower max_tokens, or start the server with a larger"
            " --kv-cache-memory",
        )
