"""Block tables: allocation, prefix reuse, sharing with copy-on-write, windows that give back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from twostroke.core.kv_groups import ONE_GROUP, KVGroups
from twostroke.core.request import BlockKey, Request, RequestStatus
from twostroke.kv_cache.block_hash import extend_block_hashes
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.block_table import (
    NO_BLOCK,
    NO_PREFIX,
    UNCHANGED,
    BlockTable,
    Prefix,
    TableChange,
    num_leading_gaps,
)
from twostroke.kv_cache.pending_loads import PendingLoads
from twostroke.kv_cache.pins import Pins
from twostroke.kv_cache.prefix_needs import PrefixNeeds
from twostroke.kv_cache.states import NO_STATES, States
from twostroke.kv_cache.watcher import CacheWatcher


class KVCacheManager:
    """Owns every block table. Slots past ``num_computed_tokens`` hold nothing that may be read.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block.
        groups: Which layers share a block, and what each group of them sees.
        states: The slots of recurrent layers, if the model has any; owned from here on.
        model_id: Part of each prefix-cache key.
        enable_prefix_caching: Whether blocks of earlier requests can be found again.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        groups: KVGroups = ONE_GROUP,
        *,
        states: States = NO_STATES,
        model_id: str = "",
        enable_prefix_caching: bool = True,
    ) -> None:
        self.block_size = block_size
        self.groups = groups
        self._num_groups = groups.count
        self.caches_prefixes = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self.states = states
        self.pins = Pins(self.pool, states.pool)
        self.prefix_queries = 0  # tokens looked up
        self.prefix_hits = 0  # tokens found
        self.model_id = model_id
        self._tables: dict[str, BlockTable] = {}
        self._watchers: list[CacheWatcher] = []
        self.loads = PendingLoads(self.pool, states, self._watchers)
        self.needs = PrefixNeeds(groups, block_size)
        self._whole, self._windows = self.needs.whole, self.needs.windows

    def watch(self, watcher: CacheWatcher) -> None:
        """Tell ``watcher`` from now on what the prefix cache gets and loses."""
        self._watchers.append(watcher)
        self.pool.on_evict = self._on_evict

    # ---- sizes -----------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of one group that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def block_ids(self, request: Request) -> list[int]:
        """The live table of a request that holds blocks. Read only."""
        return self._tables[request.request_id].blocks

    def num_blocks_missing(self, request: Request) -> int:
        """Blocks to be allocated before all known tokens of a running request have a slot."""
        table = self._tables[request.request_id]
        num_known = self.blocks_for(request.num_tokens + request.num_awaited_tokens)
        if not self._windows:
            return max(0, num_known * self._num_groups - len(table.blocks))
        num_held = self._length(table)
        missing = len(self._whole) * max(0, num_known - num_held)
        for group, window in self._windows:
            missing += self.groups.missing_in_window(
                window,
                first=table.num_dropped[group],
                num_held=num_held,
                num_known=num_known,
                num_tokens=request.num_missing_tokens,
                block_size=self.block_size,
            )
        return missing

    def num_unused_slots(self, requests: Iterable[Request]) -> int:
        """Slots that running requests' tables reserve and that hold no token."""
        return self._num_groups * sum(
            self._length(self._tables[request.request_id]) * self.block_size
            - request.num_computed_tokens
            for request in requests
        )

    # ---- a request's way through the cache -------------------------------------------------------

    def find_prefix(self, request: Request) -> Prefix:
        """The longest prefix whose keys and values exist for every group of layers.

        Never all tokens: the last one's logits are needed, so it has to be computed. One of several
        samples takes its leader's prompt blocks while the leader holds them, the partly filled last
        one included; otherwise whole blocks are looked up by content.
        """
        shared = self._find_leaders_prompt(request)
        if shared is not None:
            return shared
        if not (self.caches_prefixes and request.reads_prefix_cache):
            return NO_PREFIX
        keys, find = self.candidate_keys(request), self.pool.find
        keys = self.states.shorten(keys, self.needs, lambda key: find(key) is not None)
        if not self._windows:
            blocks = self._leading_blocks(keys)
            num_tokens = len(blocks) // self._num_groups * self.block_size
            return Prefix(blocks, num_tokens, looked_up=True)
        length = self.needs.longest(keys, lambda key: find(key) is not None)
        blocks = [NO_BLOCK] * (length * self._num_groups)
        for entry in self.needs.entries(length):
            block = find(keys[entry])
            assert block is not None, "it has just been found"
            blocks[entry] = block
        return Prefix(blocks, length * self.block_size, looked_up=True)

    def _leading_blocks(self, keys: Sequence[BlockKey]) -> list[int]:
        """The blocks that have these contents up to the first gap; as many for each group."""
        blocks: list[int] = []
        for key in keys:
            block = self.pool.find(key)
            if block is None:
                break
            blocks.append(block)
        return blocks[: len(blocks) - len(blocks) % self._num_groups]

    def _find_leaders_prompt(self, request: Request) -> Prefix | None:
        """The prompt of a request's leader, if that still holds all that its sample will see."""
        leader = request.leader
        if leader is None or leader.status is not RequestStatus.RUNNING or self.states.exist:
            return None
        shared = request.num_prompt_tokens - 1
        num_computed = leader.num_computed_tokens - leader.num_assumed_tokens
        if request.num_output_tokens > 0 or num_computed < shared:
            return None
        dropped = self._tables[leader.request_id].num_dropped
        for group, window in self._windows:
            if dropped[group] * self.block_size > max(0, shared - window + 1):
                return None
        end = self.blocks_for(shared) * self._num_groups
        return Prefix(self.block_ids(leader)[:end], shared)

    def has_room(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether all known tokens of a waiting request fit beside ``reserved`` blocks."""
        if not self.states.has_room(request, prefix.num_tokens):
            return False
        size, num_full = self.block_size, prefix.num_tokens // self.block_size
        num_known = self.blocks_for(request.num_tokens)
        new_blocks = len(self._whole) * (num_known - num_full)
        for _, window in self._windows:
            new_blocks += self.groups.missing_in_window(
                window,
                first=self.groups.first_seen(window, num_full, size),
                num_held=num_full,
                num_known=num_known,
                num_tokens=request.num_tokens - prefix.num_tokens,
                block_size=size,
            )
        revived = sum(map(self.pool.is_free, self._held(prefix.blocks)))
        return new_blocks + revived + reserved <= self.pool.num_free

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Give a waiting request a table that begins with ``prefix``."""
        assert request.request_id not in self._tables, "a waiting request holds no blocks"
        count, num_full = self._num_groups, prefix.num_tokens // self.block_size
        for block in self._held(prefix.blocks):
            self.pool.hold(block)
        if request.leader is not None and (table := self._tables.get(request.leader.request_id)):
            table.num_writable = 0  # the block that the leader writes may no longer be its own
        self._tables[request.request_id] = BlockTable(
            list(prefix.blocks),
            num_indexed=num_full * count if self.caches_prefixes else 0,
            num_full=num_full,
            num_dropped=self._num_gaps(prefix.blocks),
        )
        self.states.admit(request, prefix.num_tokens)
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
        blocks, pool, count = table.blocks, self.pool, self._num_groups
        written = request.num_computed_tokens // self.block_size * count
        num_new = max(0, self.blocks_for(end) * count - len(blocks))
        being_written = range(written, min(written + count, len(blocks)))
        shared = [entry for entry in being_written if pool.is_shared(blocks[entry])]
        if num_new + len(shared) > pool.num_free:
            return None
        block_copies = []
        for entry in shared:
            source, blocks[entry] = blocks[entry], pool.allocate()
            pool.release(source)
            block_copies.append((source, blocks[entry]))
            table.num_sent = min(table.num_sent, written)
        blocks += [pool.allocate() for _ in range(num_new)]
        first_new, table.num_sent = table.num_sent, len(blocks)
        table.num_writable = self._length(table) * self.block_size
        return TableChange(first_new, blocks[first_new:], block_copies)

    def commit(self, request: Request, start: int = 0) -> None:
        """After a step: index the blocks that it filled, give back what no later token sees.

        Args:
            start: Where its share began; the next step may be planned already.
        """
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full > table.num_full:
            self._index_full_blocks(request, table, num_full)
            self._drop_unseen(table, num_full)
            table.num_full = num_full
        self.states.commit(request, start)

    def free(self, request: Request, *, discard: bool = False) -> None:
        """Release all blocks of a request, the last first: its tail is evicted before its start.

        Args:
            discard: Its content may be wrong: lookups find no more what it alone holds, or gave
                back before.
        """
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        self.states.free(request, discard=discard)
        if discard and self._windows:
            self._discard_given_back(request, table)
        for block in reversed(self._held(table.blocks)):
            if discard and not self.pool.is_shared(block):
                self._discard(block)
            self.pool.release(block)

    # ---- contents --------------------------------------------------------------------------------

    def candidate_keys(self, request: Request) -> list[BlockKey]:
        """The keys of all blocks of a request that might be found; the last token is computed."""
        count = (request.num_tokens - 1) // self.block_size
        return self.keys_of(request, count)[: count * self._num_groups]

    def keys_of(self, request: Request, num_full: int) -> list[BlockKey]:
        """All that are known, at least those of the first ``num_full`` block indices."""
        return extend_block_hashes(
            request, num_full, self.block_size, self.model_id, self._num_groups
        )

    def clear(self) -> int:
        """Forget all prefixes, pinned ones too. Returns how many blocks.

        Running requests go on, and nothing of them is found later either.
        """
        for watcher in self._watchers:
            watcher.on_cleared()
        for table in self._tables.values():
            table.enters_index = False
        self.loads.forget_contents()
        self.pins.clear()
        self.states.clear()
        return self.pool.clear()

    def _index_full_blocks(self, request: Request, table: BlockTable, num_full: int) -> None:
        end = num_full * self._num_groups
        if not (self.caches_prefixes and table.enters_index) or end <= table.num_indexed:
            return
        keys = self.keys_of(request, num_full)
        for entry in range(table.num_indexed, end):
            if self.pool.index(table.blocks[entry], keys[entry]):
                for watcher in self._watchers:
                    watcher.on_stored(request, entry, [table.blocks[entry]])
        table.num_indexed = end

    def _drop_unseen(self, table: BlockTable, num_full: int) -> None:
        """Blocks that fell out of their windows stay found by content until they are used anew."""
        count, blocks = self._num_groups, table.blocks
        for group, window in self._windows:
            first = self.groups.first_seen(window, num_full, self.block_size)
            for block_index in range(table.num_dropped[group], first):
                entry = block_index * count + group
                self.pool.release(blocks[entry])
                blocks[entry] = NO_BLOCK
            table.num_dropped[group] = max(first, table.num_dropped[group])

    def _discard_given_back(self, request: Request, table: BlockTable) -> None:
        """Let no lookup find what a request's windows have passed, unless a table holds it."""
        for key, block in zip(request.block_hashes, table.blocks):
            given_back = self.pool.find(key) if block == NO_BLOCK else None
            if given_back is not None and self.pool.is_free(given_back):
                self.pool.hold(given_back)
                self._discard(given_back)
                self.pool.release(given_back)

    def _discard(self, block: int) -> None:
        """Let no lookup find a held block's content, which may be wrong, here or elsewhere."""
        if (key := self.pool.content(block)) is not None:
            for watcher in self._watchers:
                watcher.on_removed(block, key, is_wrong=True)
        self.pool.unindex(block)

    def _on_evict(self, block: int, key: BlockKey) -> None:
        for watcher in self._watchers:
            watcher.on_removed(block, key)

    def _length(self, table: BlockTable) -> int:
        """Blocks of one group in a table."""
        return len(table.blocks) // self._num_groups

    def _num_gaps(self, blocks: list[int]) -> list[int]:
        """For each group, the number of leading table entries without a block."""
        if not self._windows:
            return [0] * self._num_groups
        count = self._num_groups
        return [num_leading_gaps(blocks[group::count]) for group in range(count)]

    def _held(self, blocks: list[int]) -> list[int]:
        """The entries of a table that have a block."""
        return [block for block in blocks if block != NO_BLOCK] if self._windows else blocks

    def check_integrity(self) -> None:
        """Assert that reference counts, tables, free list and index agree (tests call it often)."""
        holders = Counter(self.loads.held_blocks())
        count, size = self._num_groups, self.block_size
        for request_id, table in self._tables.items():
            held = self._held(table.blocks)
            holders.update(held)
            assert len(set(held)) == len(held), f"{request_id} holds a block twice"
            assert table.num_indexed <= len(table.blocks), f"{request_id}: indexed too much"
            assert len(table.blocks) % count == 0
            for group, window in enumerate(self.groups.windows):
                dropped, blocks = table.num_dropped[group], table.blocks[group::count]
                assert num_leading_gaps(blocks) == dropped and NO_BLOCK not in blocks[dropped:]
                first = self.groups.first_seen(window, table.num_full, size)
                assert window is None or dropped >= first, "what no token sees was kept"
        self.pool.check_integrity(holders)
        self.states.check_integrity()
