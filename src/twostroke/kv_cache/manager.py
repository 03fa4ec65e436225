"""Block tables: allocation, prefix reuse, sharing with copy-on-write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, cycle, islice

import msgspec

from twostroke.core.errors import RequestTooLargeError
from twostroke.core.request import BlockKey, Request, RequestStatus
from twostroke.kv_cache.block_hash import extend_block_hashes
from twostroke.kv_cache.block_pool import BlockPool


class Prefix(msgspec.Struct, frozen=True):
    """Keys and values that exist already: the first ``num_tokens`` tokens, in ``blocks``.

    ``looked_up`` tells whether the prefix cache was asked for them.
    """

    blocks: list[int]
    num_tokens: int
    looked_up: bool = False


class Allocation(msgspec.Struct, frozen=True):
    """What ``allocate`` did: copies the executor must make first, and the first table entry that is
    new.
    """

    block_copies: list[tuple[int, int]]
    changed_from: int


class BlockTable(msgspec.Struct):
    """One request's blocks in order of position, and the request's own list of what they hold, as
    far as it is known.

    The first ``num_indexed`` are in the prefix cache's index; the executor has seen the first
    ``num_announced``. Up to ``num_ready`` tokens, at least, can be written before anything has to
    be allocated, copied or announced.
    """

    blocks: list[int]
    contents: list[BlockKey]
    num_indexed: int = 0
    num_announced: int = 0
    num_ready: int = 0


NO_PREFIX, NOT_FOUND = Prefix([], 0), Prefix([], 0, looked_up=True)


class KVCacheManager:
    """Owns every block table. Slots of a block past ``num_computed_tokens`` hold nothing anyone may
    read.

    While no two tables have begun alike, no lookup can find anything, and what blocks hold is
    looked after by tables and queues alone. The first time that two do, the pool gets its index.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block.
        model_id: Part of each prefix-cache key.
        enable_prefix_caching: Whether finished requests' blocks can be found again.

    Attributes:
        before_index: Called before all tables are read, to bring those that are lent up to date.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        model_id: str = "",
        enable_prefix_caching: bool = True,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, is_indexed=False)
        self.before_index: Callable[[], None] = lambda: None
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._model_id = model_id
        self._caching = enable_prefix_caching
        self._tables: dict[str, BlockTable] = {}
        self._beginnings: set[BlockKey] = (
            set()
        )  # the first contents of all that may be found; until there is an index

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def check_fits(self, request: Request) -> None:
        """Raise ``RequestTooLargeError``, with the numbers, for a request that needs more blocks
        than there are.
        """
        needed = self.blocks_for(request.max_total_tokens)
        if needed > self.pool.num_blocks:
            available = self.pool.num_blocks * self.block_size
            raise RequestTooLargeError(
                f"the request needs {needed} KV blocks for {request.max_total_tokens} tokens, "
                f"but the cache has {self.pool.num_blocks} ({available} tokens)",
                needed=request.max_total_tokens,
                available=available,
                param="max_tokens",
                hint=(
                    "shorten the prompt, lower max_tokens, or start the server with a larger"
                    " --kv-cache-memory"
                ),
            )

    def block_ids(self, request: Request) -> list[int]:
        """The live table of a request that holds blocks."""
        return self._tables[request.request_id].blocks

    def num_blocks_missing(self, request: Request) -> int:
        """Blocks still to be allocated before all known tokens of a running request have a slot."""
        return self.blocks_for(request.num_tokens) - len(self._tables[request.request_id].blocks)

    def num_blocks_promised(self, requests: Iterable[Request]) -> int:
        """``num_blocks_missing`` of all of them together."""
        size, tables = self.block_size, self._tables
        return sum(
            [-(-len(r.token_ids) // size) - len(tables[r.request_id].blocks) for r in requests]
        )

    def find_prefix(self, request: Request) -> Prefix:
        """The longest prefix whose keys and values exist; never all tokens, since the last one's
        logits are needed.

        One of several samples takes its leader's prompt blocks while the leader holds them, the
        partly filled last one included; otherwise whole blocks are looked up by content.
        """
        leader = request.leader
        if (
            leader is not None
            and leader.status is RequestStatus.RUNNING
            and request.num_output_tokens == 0
        ):
            shared = request.num_prompt_tokens - 1
            if leader.num_computed_tokens >= shared:
                return Prefix(self.block_ids(leader)[: self.blocks_for(shared)], shared)
        if not (self._caching and request.reads_prefix_cache):
            return NO_PREFIX
        num_candidates = (request.num_tokens - 1) // self.block_size
        hashes = extend_block_hashes(request, num_candidates, self.block_size, self._model_id)
        if not self.pool.is_indexed:
            if not num_candidates or hashes[0] not in self._beginnings:
                return NOT_FOUND
            self._need_index()
        blocks = self.pool.find_first(hashes, num_candidates)
        return Prefix(blocks, len(blocks) * self.block_size, looked_up=True)

    def has_room(self, request: Request, prefix: Prefix, reserved: int) -> bool:
        """Whether all known tokens of a waiting request fit beside ``reserved`` blocks promised to
        others.
        """
        new_blocks = self.blocks_for(request.num_tokens) - prefix.num_tokens // self.block_size
        revived = 0
        if prefix.blocks and prefix.looked_up:
            revived = self.pool.num_kept(request.block_hashes[: len(prefix.blocks)])
        return new_blocks + revived + reserved <= self.pool.num_free

    def admit(self, request: Request, prefix: Prefix) -> None:
        """Give a waiting request a table that begins with ``prefix``; count what the prefix cache
        saved it, once.
        """
        if prefix.blocks:
            self._need_index()
        if not prefix.looked_up:
            for block in prefix.blocks:
                self.pool.share(block)
        elif prefix.blocks:
            self.pool.share_found(request.block_hashes[: len(prefix.blocks)])
        num_indexed = prefix.num_tokens // self.block_size if self._caching else 0
        if request.leader is not None and (shared := self._tables.get(request.leader.request_id)):
            shared.num_ready = 0  # the block that it writes may no longer be its own
        self._tables[request.request_id] = BlockTable(
            list(prefix.blocks), request.block_hashes, num_indexed
        )
        request.num_computed_tokens = prefix.num_tokens
        if prefix.looked_up and request.num_preemptions == 0:
            self.prefix_queries += request.num_tokens
            self.prefix_hits += prefix.num_tokens

    def num_blocks_short(self, request: Request, num_tokens: int) -> int:
        """How many free blocks are lacking to make the table cover ``num_tokens`` tokens (0 or
        less: none).
        """
        table = self._tables[request.request_id]
        num_new = -(-num_tokens // self.block_size) - len(table.blocks)
        return (
            (num_new if num_new > 0 else 0) + self._must_copy(request, table) - self.pool.num_free
        )

    def tables_with_room(self, requests: Sequence[Request]) -> list[list[int] | None]:
        """The live table of each running request that can write its next token as things are,
        ``None`` for others.

        It then has a slot in a block that nobody else holds, and the executor has seen all of the
        table.
        """
        tables = self._tables
        return [
            (
                table.blocks
                if request.num_computed_tokens < (table := tables[request.request_id]).num_ready
                else None
            )
            for request in requests
        ]

    def grow(self, request: Request) -> list[int] | None:
        """Add the block that a running request's next token begins, if no more than that is to be
        done for it.

        Returns its table, of which the executor has seen all but the last block; ``None``: see
        ``allocate``.
        """
        table = self._tables[request.request_id]
        blocks = table.blocks
        known = len(blocks)
        if request.num_computed_tokens != known * self.block_size or table.num_announced != known:
            return None
        if not self.pool.num_free:
            return None
        blocks.append(self.pool.allocate())
        table.num_announced = known + 1
        table.num_ready = table.num_announced * self.block_size
        return blocks

    # ---- tables whose next tokens are known (``scheduling/steady.py``) ---------------------------

    def lend(self, request: Request) -> tuple[list[int], Iterator[BlockKey]]:
        """The live table of a running request, and ``unfilled``.

        Whoever asks sees to the table until ``settle``: no more blocks are looked after than these
        methods are told of.
        """
        table = self._tables[request.request_id]
        if request.num_computed_tokens < self.block_size and table.contents and self._caching:
            self._begin(table.contents[0])  # nobody will say when its first block is full
        return table.blocks, self.unfilled(request)

    def unfilled(self, request: Request) -> Iterator[BlockKey]:
        """The contents of the blocks that a request has not filled."""
        return iter(request.block_hashes[request.num_computed_tokens // self.block_size :])

    def settle(self, request: Request) -> None:
        """Bring the rest of a lent table up to what its request has computed."""
        table = self._tables[request.request_id]
        table.num_announced = len(table.blocks)
        table.num_ready = table.num_announced * self.block_size
        table.num_indexed = request.num_computed_tokens // self.block_size if self._caching else 0

    def begin_blocks(self, tables: Sequence[list[int]]) -> None:
        """Each begins a block."""
        list(map(list.append, tables, self.pool.allocate_many(len(tables))))

    def fill_blocks(
        self, tables: Sequence[list[int]], contents: Iterable[Iterator[BlockKey]]
    ) -> None:
        """The last block of each is full: into the prefix cache's index with it."""
        if self.pool.is_indexed:
            self.pool.remember_all([table[-1] for table in tables], list(map(next, contents)))

    def take_turns(
        self,
        tables: list[list[int]],
        contents: list[Iterator[BlockKey]],
        counts: list[int],
        steps: int,
    ) -> None:
        """Several steps: in each the next tables in turn begin a block, and in its end those after
        them fill theirs.

        Args:
            tables: In turn; after the last one it is the first one's again.
            contents: What their next blocks will hold.
            counts: How many begin a block in each step, over and over; one round takes all tables.
        """
        pool, first, beyond = self.pool, counts[0], steps % len(counts)
        total = steps // len(counts) * len(tables) + sum(counts[:beyond])
        end = total + counts[beyond]
        again = end > len(tables)
        turns: Iterable[list[int]] = cycle(tables) if again else tables
        if not pool.is_indexed:
            list(map(list.append, turns, pool.allocate_many(total)))
            return
        fillers = (
            islice(chain(contents[first:], cycle(contents)), end - first)
            if again
            else contents[first:end]
        )
        new = list(map(next, fillers))
        if pool.num_kept(new):
            self._take_turns_one_by_one(tables, new, counts, steps)
            return
        # No block that may be evicted meanwhile holds the same: it does not matter when the index
        # gets to know of it.
        full, taken = [table[-1] for table in tables[first:end]], pool.allocate_many(total)
        list(map(list.append, turns, taken))
        pool.remember_all((full + taken)[: len(new)] if again else full, new)

    def _take_turns_one_by_one(
        self, tables: list[list[int]], contents: list[BlockKey], counts: list[int], steps: int
    ) -> None:
        turns, fillers, known = (
            cycle(tables),
            islice(cycle(tables), counts[0], None),
            iter(contents),
        )
        for step in range(steps):
            self.begin_blocks(list(islice(turns, counts[step % len(counts)])))
            full = [table[-1] for table in islice(fillers, counts[(step + 1) % len(counts)])]
            self.pool.remember_all(full, list(islice(known, len(full))))

    def allocate(self, request: Request, num_tokens: int) -> Allocation:
        """Make the table cover ``num_tokens`` tokens and its slots writable from the first
        uncomputed one on.

        The caller has seen that ``num_blocks_short`` is not positive. A block that others hold too
        is copied before it is written. Blocks in the index are full and so never written again.
        """
        table = self._tables[request.request_id]
        first_written = request.num_computed_tokens // self.block_size
        block_copies = []
        if self._must_copy(request, table):
            source, target = table.blocks[first_written], self.pool.allocate()
            table.blocks[first_written] = target
            self.pool.release(source)
            block_copies.append((source, target))
            table.num_announced = min(table.num_announced, first_written)
        num_new = -(-num_tokens // self.block_size) - len(table.blocks)
        if num_new > 0:
            table.blocks += self.pool.allocate_many(num_new)
        changed_from, table.num_announced = table.num_announced, len(table.blocks)
        table.num_ready = len(table.blocks) * self.block_size
        return Allocation(block_copies, changed_from)

    def _must_copy(self, request: Request, table: BlockTable) -> bool:
        index, blocks = request.num_computed_tokens // self.block_size, table.blocks
        return index < len(blocks) and self.pool.is_shared(blocks[index])

    def commit(self, request: Request) -> None:
        """After a step: put the blocks that it filled into the prefix cache's index."""
        if not self._caching:
            return
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full > table.num_indexed:
            hashes = extend_block_hashes(request, num_full, self.block_size, self._model_id)
            if not table.num_indexed:
                self._begin(hashes[0])
            if self.pool.is_indexed:
                new = slice(table.num_indexed, num_full)
                self.pool.remember_all(table.blocks[new], hashes[new])
            table.num_indexed = num_full

    def free(self, request: Request, *, discard: bool = False) -> None:
        """Release all blocks of a request, the last first, so that its tail is evicted before its
        beginning.

        Args:
            discard: Its content may be wrong: also forget those blocks that nobody else holds.
        """
        if discard:
            self._need_index()
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        contents = extend_block_hashes(request, table.num_indexed, self.block_size, self._model_id)[
            : table.num_indexed
        ]
        if discard:
            for block, content in zip(table.blocks, contents):
                if not self.pool.is_shared(block):
                    self.pool.forget(block, content)
        self.pool.release_all(table.blocks, contents)

    # ---- what lookups can find -------------------------------------------------------------------

    @property
    def num_cached(self) -> int:
        """Blocks whose content a lookup can find."""
        held = (
            0
            if self.pool.is_indexed
            else sum([table.num_indexed for table in self._tables.values()])
        )
        return self.pool.num_cached + held

    def cached(self) -> dict[BlockKey, int]:
        """Those blocks, by content. Not to be changed."""
        if self.pool.is_indexed:
            return self.pool.block_of
        self.before_index()
        found = self.pool.kept()
        for table in self._tables.values():
            found.update(zip(table.contents[: table.num_indexed], table.blocks))
        return found

    def _begin(self, content: BlockKey) -> None:
        """Note with which content a table begins."""
        if self.pool.is_indexed:
            return
        if content in self._beginnings:
            self._need_index()
            return
        self._beginnings.add(content)
        if (
            len(self._beginnings) > 2 * self.pool.num_blocks
        ):  # most are of requests that are forgotten
            held = {table.contents[0] for table in self._tables.values() if table.contents}
            self._beginnings &= held.union(self.pool.kept())

    def _need_index(self) -> None:
        if self._caching and not self.pool.is_indexed:
            self.pool.index(self.cached())
            self._beginnings.clear()

    def num_unused_slots(self, requests: Iterable[Request]) -> int:
        """Slots that running requests' tables reserve and that hold no token."""
        tables, size = self._tables, self.block_size
        return sum(
            [len(tables[r.request_id].blocks) * size - r.num_computed_tokens for r in requests]
        )

    def check_integrity(self) -> None:
        """Assert that reference counts, tables, free list and index agree (tests call it after
        every step).
        """
        holders = Counter(block for table in self._tables.values() for block in table.blocks)
        for request_id, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"{request_id} holds a block twice"
            assert table.num_indexed <= len(table.blocks), (
                f"{request_id} indexed more blocks than it has"
            )
        self.pool.check_integrity(holders)
        cached = self.cached()
        assert len(set(cached.values())) == len(cached), "a block has two contents"
        assert len(cached) == self.num_cached, (
            "two blocks have the same content, and there is no index"
        )
