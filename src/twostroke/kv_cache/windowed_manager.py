"""Block tables of models with sliding windows: what no token will see again is given back.

Layers are in groups (``core.kv_groups``), and each group has a block for every ``block_size``
tokens. A request's tables lie interleaved in one list: with G groups, the blocks of position p are
entries ``p * G`` to ``p * G + G - 1``, and so are their keys in ``request.block_hashes``. An entry
whose block was given back is ``NO_BLOCK``, so positions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twostroke.core.kv_groups import KVGroups, keys_of_groups
from twostroke.core.request import BlockKey, Request, RequestStatus
from twostroke.kv_cache.block_hash import extend_group_hashes, prefix_hashes
from twostroke.kv_cache.manager import (
    NO_PREFIX,
    UNCHANGED,
    BlockTable,
    KVCacheManager,
    Prefix,
    TableChange,
)

NO_BLOCK = -1


class WindowTable(BlockTable, kw_only=True):
    """A ``BlockTable`` of all groups.

    ``num_full`` positions are computed and were looked at; of each group, the first
    ``num_dropped`` positions have no block any more.
    """

    num_full: int
    num_dropped: list[int]


class WindowedKVCacheManager(KVCacheManager):
    """A ``KVCacheManager`` for any groups of layers.

    Args:
        groups: The model's.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        groups: KVGroups,
        *,
        model_id: str = "",
        enable_prefix_caching: bool = True,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size,
            model_id=model_id,
            enable_prefix_caching=enable_prefix_caching,
        )
        self.groups = groups
        windows = list(enumerate(groups.windows))
        self._whole = [group for group, window in windows if window is None]
        self._windows = [(group, window) for group, window in windows if window is not None]

    # ---- sizes -----------------------------------------------------------------------------------

    def num_blocks_missing(self, request: Request) -> int:
        table = self._table(request)
        num_known, num_held = self.blocks_for(request.num_tokens), self._length(table)
        missing = len(self._whole) * max(0, num_known - num_held)
        for group, window in self._windows:
            most = self.groups.most_in_window(window, request.num_missing_tokens, self.block_size)
            dropped = table.num_dropped[group]
            missing += max(0, min(num_known - dropped, most) - (num_held - dropped))
        return missing

    def num_unused_slots(self, requests: Iterable[Request]) -> int:
        size = self.block_size
        return self.groups.count * sum(
            self._length(self._table(request)) * size - request.num_computed_tokens
            for request in requests
        )

    def _held(self, table: BlockTable) -> list[int]:
        return [block for block in table.blocks if block != NO_BLOCK]

    def _length(self, table: BlockTable) -> int:
        """Positions of a table."""
        return len(table.blocks) // self.groups.count

    def _table(self, request: Request) -> WindowTable:
        table = self._tables[request.request_id]
        assert isinstance(table, WindowTable)
        return table

    # ---- a request's way through the cache -------------------------------------------------------

    def find_prefix(self, request: Request) -> Prefix:
        """The longest prefix that is there for every group: all of it, or its last window."""
        shared = self._find_leaders_prompt(request)
        if shared is not None:
            return shared
        if not (self._caching and request.reads_prefix_cache):
            return NO_PREFIX
        keys, find = self._candidate_keys(request), self.pool.find
        length = self._longest(keys, lambda key: find(key) is not None)
        blocks = [NO_BLOCK] * (length * self.groups.count)
        for index in self._needed(length):
            block = find(keys[index])
            if block is None:  # on another thread (a prediction): evicted since it was found
                return NO_PREFIX
            blocks[index] = block
        return Prefix(blocks, length * self.block_size, looked_up=True)

    def _find_leaders_prompt(self, request: Request) -> Prefix | None:
        """The prompt of a request's leader, if that still holds all that its sample will see."""
        leader = request.leader
        if leader is None or leader.status is not RequestStatus.RUNNING:
            return None
        shared = request.num_prompt_tokens - 1
        if request.num_output_tokens > 0 or leader.num_computed_tokens < shared:
            return None
        dropped = self._table(leader).num_dropped
        for group, window in self._windows:
            if dropped[group] * self.block_size > max(0, shared - window + 1):
                return None
        end = self.blocks_for(shared) * self.groups.count
        return Prefix(self.block_ids(leader)[:end], shared)

    def _candidate_keys(self, request: Request) -> list[BlockKey]:
        """The keys of all blocks of a request that might be found; the last token is computed."""
        count = (request.num_tokens - 1) // self.block_size
        return self._hashes(request, count)[: count * self.groups.count]

    def _hashes(self, request: Request, num_full: int) -> list[BlockKey]:
        sizes = self.block_size, self._model_id, self.groups.count
        return extend_group_hashes(request, num_full, *sizes)

    def _longest(self, keys: Sequence[BlockKey], has: Callable[[BlockKey], bool]) -> int:
        """Positions of the longest prefix whose needed blocks are all there.

        First the groups that see everything bound it. Then the ends are tried from there
        downwards: a missing block of a window rules out all ends that would see it.
        """
        count = self.groups.count
        end = len(keys) // count
        for group in self._whole:
            for position in range(end):
                if not has(keys[position * count + group]):
                    end = position
                    break
        position, firsts = end, self._firsts(end)
        while position > min(firsts):
            position -= 1
            if any(
                position >= firsts[group] and not has(keys[position * count + group])
                for group, _ in self._windows
            ):
                end, firsts = position, self._firsts(position)
        return end

    def _firsts(self, num_full: int) -> list[int]:
        """For each group, the first position that is needed behind so many; see ``first_seen``.

        That of a group without a window counts as reached: it has been looked at as a whole.
        """
        size, first_seen = self.block_size, self.groups.first_seen
        return [
            num_full if window is None else first_seen(window, num_full, size)
            for window in self.groups.windows
        ]

    def _needed(self, length: int) -> list[int]:
        """Where in a table lie the blocks that a prefix of ``length`` positions needs, in order."""
        size, count = self.block_size, self.groups.count
        return sorted(
            position * count + group
            for group, window in enumerate(self.groups.windows)
            for position in range(self.groups.first_seen(window, length, size), length)
        )

    def has_room(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        size, num_full = self.block_size, prefix.num_tokens // self.block_size
        num_known = self.blocks_for(request.num_tokens)
        new_blocks = len(self._whole) * (num_known - num_full)
        num_missing = request.num_tokens - prefix.num_tokens
        for _, window in self._windows:
            first = self.groups.first_seen(window, num_full, size)
            most = self.groups.most_in_window(window, num_missing, size)
            new_blocks += max(0, min(num_known - first, most) - (num_full - first))
        revived = sum(self.pool.is_free(block) for block in prefix.blocks if block != NO_BLOCK)
        return new_blocks + revived + reserved <= self.pool.num_free

    def admit(self, request: Request, prefix: Prefix) -> None:
        assert request.request_id not in self._tables, "a waiting request holds no blocks"
        count, num_full = self.groups.count, prefix.num_tokens // self.block_size
        for block in prefix.blocks:
            if block != NO_BLOCK:
                self.pool.hold(block)
        if request.leader is not None and (table := self._tables.get(request.leader.request_id)):
            table.num_writable = 0  # the block that the leader writes may no longer be its own
        self._tables[request.request_id] = WindowTable(
            list(prefix.blocks),
            num_indexed=num_full * count if self._caching else 0,
            num_full=num_full,
            num_dropped=[_num_leading(prefix.blocks[group::count]) for group in range(count)],
        )
        request.num_computed_tokens = prefix.num_tokens
        if prefix.looked_up and request.num_preemptions == 0:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += prefix.num_tokens
            for watcher in self._watchers:
                watcher.on_found(request, len(prefix.blocks))

    def allocate_slots(self, request: Request, num_tokens: int) -> TableChange | None:
        table, count = self._tables[request.request_id], self.groups.count
        end = request.num_computed_tokens + num_tokens
        if end <= table.num_writable:
            return UNCHANGED
        blocks, pool = table.blocks, self.pool
        written = request.num_computed_tokens // self.block_size * count
        num_new = max(0, self.blocks_for(end) * count - len(blocks))
        being_written = range(written, min(written + count, len(blocks)))
        shared = [index for index in being_written if pool.is_shared(blocks[index])]
        if num_new + len(shared) > pool.num_free:
            return None
        block_copies = []
        for index in shared:
            source, blocks[index] = blocks[index], pool.allocate()
            pool.release(source)
            block_copies.append((source, blocks[index]))
            table.num_sent = min(table.num_sent, written)
        blocks += [pool.allocate() for _ in range(num_new)]
        first_new, table.num_sent = table.num_sent, len(blocks)
        table.num_writable = self._length(table) * self.block_size
        return TableChange(first_new, blocks[first_new:], block_copies)

    def commit(self, request: Request) -> None:
        """Index what the step filled, then give back what no later token sees."""
        table = self._table(request)
        num_full = request.num_computed_tokens // self.block_size
        if num_full > table.num_full:
            self._index_full_blocks(request, table, num_full)
            self._drop_unseen(table, num_full)

    def _drop_unseen(self, table: WindowTable, num_full: int) -> None:
        """Blocks that fell out of their windows stay found by content until they are used anew."""
        count, blocks = self.groups.count, table.blocks
        table.num_full = num_full
        for group, window in self._windows:
            first = self.groups.first_seen(window, num_full, self.block_size)
            for position in range(table.num_dropped[group], first):
                index = position * count + group
                self.pool.release(blocks[index])
                blocks[index] = NO_BLOCK
            table.num_dropped[group] = max(first, table.num_dropped[group])

    def free(self, request: Request, *, discard: bool = False) -> None:
        if (table := self._tables.get(request.request_id)) is None:
            return
        if discard:
            for key, block in zip(request.block_hashes, table.blocks):
                given_back = self.pool.find(key) if block == NO_BLOCK else None
                if given_back is not None and self.pool.is_free(given_back):
                    self.pool.hold(given_back)
                    self._discard(given_back)
                    self.pool.release(given_back)
        table.blocks = self._held(table)
        super().free(request, discard=discard)

    # ---- blocks that come from tiers, and pins ---------------------------------------------------

    def full_blocks(self, request: Request) -> tuple[list[int], list[BlockKey]]:
        num_full = request.num_computed_tokens // self.block_size
        keys = self._hashes(request, num_full)[: num_full * self.groups.count]
        pairs = [(b, k) for b, k in zip(self.block_ids(request), keys) if b != NO_BLOCK]
        return [block for block, _ in pairs], [key for _, key in pairs]

    def find_loadable(
        self, request: Request, prefix: Prefix, is_in_tier: Callable[[BlockKey], bool]
    ) -> tuple[list[BlockKey], list[int], int]:
        """As in the base; a window needs no more than its last blocks."""
        keys, find = self._candidate_keys(request), self.pool.find
        length = self._longest(keys, lambda key: find(key) is not None or is_in_tier(key))
        num_tokens = length * self.block_size - prefix.num_tokens
        if num_tokens <= 0:
            return [], [], 0
        blocks = {keys[index]: find(keys[index]) for index in self._needed(length)}
        loaded = [key for key, block in blocks.items() if block is None]
        kept = [block for block in blocks.values() if block is not None]
        if len(loaded) + sum(map(self.pool.is_free, kept)) > self.pool.num_free:
            return [], [], 0
        return loaded, kept, num_tokens

    def pin(
        self, token_ids: Sequence[int], cache_salt: str, until: float, tenant: str = ""
    ) -> list[BlockKey] | None:
        """As in the base; of a window, its last blocks. Returns the keys of the first group."""
        hashes = prefix_hashes(token_ids, self.block_size, self._model_id, cache_salt)
        keys = [key for each in hashes for key in keys_of_groups(each, self.groups.count)]
        pinned = [keys[index] for index in self._needed(len(hashes))]
        return keys[:: self.groups.count] if self.pins.pin(pinned, until, tenant) else None

    # ---- runs of equal steps ---------------------------------------------------------------------

    def advance(self, requests: Sequence[Request], steps: int) -> list[tuple[int, int]]:
        size, count = self.block_size, self.groups.count
        due: list[list[tuple[Request, WindowTable]]] = [[] for _ in range(size)]
        tables = [self._table(request) for request in requests]
        for request, table in zip(requests, tables):
            due[-request.num_computed_tokens % size].append((request, table))
            request.num_computed_tokens += steps
        counts = []
        for step in range(steps):
            for _, table in due[step % size]:
                table.blocks += [self.pool.allocate() for _ in range(count)]
            for request, table in due[(step + 1) % size]:
                num_full = self._length(table)
                self._index_full_blocks(request, table, num_full)
                self._drop_unseen(table, num_full)
            counts.append((self.pool.num_free, self.pool.num_cached))
        for table in tables:
            table.num_sent = len(table.blocks)
            table.num_writable = self._length(table) * size
        return counts

    def _index_full_blocks(self, request: Request, table: BlockTable, num_full: int) -> None:
        end = num_full * self.groups.count
        if not (self._caching and table.enters_index) or end <= table.num_indexed:
            return
        hashes = self._hashes(request, num_full)
        for index in range(table.num_indexed, end):
            if self.pool.index(table.blocks[index], hashes[index]):
                for watcher in self._watchers:
                    watcher.on_stored(request, index, [table.blocks[index]])
        table.num_indexed = end

    def check_integrity(self) -> None:
        super().check_integrity()
        count, size = self.groups.count, self.block_size
        for table in self._tables.values():
            assert isinstance(table, WindowTable) and len(table.blocks) % count == 0
            for group, window in enumerate(self.groups.windows):
                dropped, blocks = table.num_dropped[group], table.blocks[group::count]
                assert _num_leading(blocks) == dropped and NO_BLOCK not in blocks[dropped:]
                first = self.groups.first_seen(window, table.num_full, size)
                assert window is None or dropped >= first, "what nobody sees was kept"


def make_manager(
    num_blocks: int,
    block_size: int,
    groups: KVGroups,
    *,
    model_id: str = "",
    enable_prefix_caching: bool = True,
) -> KVCacheManager:
    """The block tables of a model: the plain ones, if its layers see everything."""
    if groups.windows == (None,):
        return KVCacheManager(
            num_blocks,
            block_size,
            model_id=model_id,
            enable_prefix_caching=enable_prefix_caching,
        )
    return WindowedKVCacheManager(
        num_blocks,
        block_size,
        groups,
        model_id=model_id,
        enable_prefix_caching=enable_prefix_caching,
    )


def _num_leading(blocks: Sequence[int]) -> int:
    """How many of the first entries have no block."""
    return next((i for i, block in enumerate(blocks) if block != NO_BLOCK), len(blocks))
