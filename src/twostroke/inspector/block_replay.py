"""The KV cache at any moment of a recording: what the steps before it did to the blocks.

Steps say which blocks a request's table got. What lookups can find is inferred: a block is cached
once it is full, until somebody else gets it. Of equal blocks that were computed at the same time
the cache knows one only; here both are taken for cached.
"""

from __future__ import annotations

import zlib
from collections import Counter, deque

import msgspec

from twostroke.core.request import FinishReason
from twostroke.observability.events import ScheduledTokens, StepEvent
from twostroke.observability.snapshot import BlockState, PrefixChain

# Requests that are remembered after their end, as known prefixes, and blocks of theirs.
MAX_CHAINS, MAX_KEYS = 128, 2**14


class Saved(msgspec.Struct):
    """A replay between two steps, as a message: see ``BlockReplay``."""

    num_blocks: int
    block_size: int
    tables: dict[str, list[int]] = {}
    full: dict[str, int] = {}
    found: dict[str, int] = {}
    tenants: dict[str, str] = {}
    loading: dict[str, list[int]] = {}
    content: dict[int, int] = {}
    emptied: dict[int, None] = {}
    evictable: dict[int, None] = {}
    num_touched: int = 0
    num_contents: int = 0
    chains: list[PrefixChain] = []
    is_known: bool = True


_SAVED = msgspec.msgpack.Decoder(Saved)  # made once: several threads read


class BlockReplay:
    """Follows steps one after the other.

    Args:
        saved: Where to go on; see ``save``.

    Attributes:
        is_known: False once a request ran whose blocks no step has told: then nothing is known.
    """

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._holders = Counter(
            block
            for tables in (saved.tables, saved.loading)
            for blocks in tables.values()
            for block in blocks
        )
        self._chains = deque(saved.chains)
        self._num_keys = sum(len(chain.keys) for chain in self._chains)

    @classmethod
    def restore(cls, data: bytes) -> BlockReplay:
        """What ``save`` gave, as a replay of its own."""
        return cls(_SAVED.decode(zlib.decompress(data)))

    def save(self) -> bytes:
        """All that is needed to go on from here."""
        self._saved.chains = list(self._chains)
        return zlib.compress(msgspec.msgpack.encode(self._saved), level=1)

    @property
    def is_known(self) -> bool:
        return self._saved.is_known

    def add(self, event: StepEvent) -> None:
        """Take in the next step."""
        saved = self._saved
        if not saved.is_known:
            return
        shares = {share.request_id: share for share in event.scheduled}
        for started in event.started:
            saved.tenants[started.request_id] = started.tenant
        ended = {ended.request_id: ended.reason for ended in event.finished}
        for request_id, reason in ended.items():
            if request_id not in shares:
                self._release(request_id, reason)
        for preempted in event.preempted:
            self._release(preempted.request_id, None)
        for load in event.block_loads:
            for block in load.block_ids:
                self._allocate(block)
            saved.loading[load.request_id] = list(load.block_ids)
        for change in event.block_tables:
            if (share := shares.get(change.request_id)) is not None:
                self._change(share, change.first, change.blocks)
        for share in event.scheduled:
            if share.request_id not in saved.tables:
                saved.is_known = False
                return
            self._fill(share, event.cached_blocks > 0)
        for request_id, reason in ended.items():
            self._release(request_id, reason)
        for request_id in event.loaded:
            self._end_load(request_id, loaded=True)
        for request_id in event.failed_loads:
            self._end_load(request_id, loaded=False)
        if event.cached_blocks == 0 and saved.content:
            self._clear()

    def state(self) -> BlockState | None:
        """All blocks after the last step; ``None`` if nobody knows."""
        saved = self._saved
        if not saved.is_known:
            return None
        fresh = range(saved.num_touched, saved.num_blocks)
        running = [self._chain(request_id) for request_id in saved.tables]
        return BlockState(
            num_blocks=saved.num_blocks,
            block_size=saved.block_size,
            tables={request_id: list(table) for request_id, table in saved.tables.items()},
            cached={key: block for block, key in saved.content.items()},
            free=[*reversed(saved.emptied), *fresh, *saved.evictable],
            chains=[*self._chains, *running],
        )

    def _change(self, share: ScheduledTokens, first: int, blocks: list[int]) -> None:
        """A table from place ``first`` on; of a new one the prefix was in the cache."""
        saved, request_id = self._saved, share.request_id
        table = saved.tables.get(request_id)
        num_held = 0
        if table is None:
            table = saved.tables[request_id] = []
            num_held = share.start // saved.block_size
            saved.full[request_id] = 0
            saved.found.setdefault(request_id, num_held)
        replaced = table[first:]
        for place, block in enumerate(blocks):
            if place < num_held:
                self._hold(block)
            elif place >= len(replaced) or replaced[place] != block:
                self._allocate(block)
        for place, block in enumerate(replaced):
            if place >= len(blocks) or blocks[place] != block:
                self._let_go(block)
        table[first:] = blocks

    def _fill(self, share: ScheduledTokens, is_caching: bool) -> None:
        saved, table = self._saved, self._saved.tables[share.request_id]
        computed = share.start + share.num_tokens - share.num_drafts + share.num_accepted_drafts
        full = min(computed // saved.block_size, len(table))
        if is_caching:
            for block in table[saved.full[share.request_id] : full]:
                if block not in saved.content:
                    self._name(block)
        saved.full[share.request_id] = full

    def _release(self, request_id: str, reason: FinishReason | None) -> None:
        """Take a request's blocks back; ``reason`` says why it ended, if it did."""
        saved = self._saved
        if request_id in saved.tables:
            if reason is not None:
                self._remember(request_id)
            for block in reversed(saved.tables.pop(request_id)):
                if reason is FinishReason.ERROR and self._holders[block] == 1:
                    saved.content.pop(block, None)
                self._let_go(block)
            saved.full.pop(request_id, None)
        if reason is not None:
            saved.found.pop(request_id, None)
            saved.tenants.pop(request_id, None)

    def _end_load(self, request_id: str, *, loaded: bool) -> None:
        for block in reversed(self._saved.loading.pop(request_id, [])):
            if loaded:
                self._name(block)
            self._let_go(block)

    def _name(self, block: int) -> None:
        self._saved.num_contents += 1
        self._saved.content[block] = self._saved.num_contents

    def _allocate(self, block: int) -> None:
        saved = self._saved
        saved.content.pop(block, None)
        self._hold(block)

    def _hold(self, block: int) -> None:
        saved = self._saved
        if block >= saved.num_touched:  # the pool gives fresh blocks away in order
            saved.emptied |= dict.fromkeys(range(block - 1, saved.num_touched - 1, -1))
            saved.num_touched = block + 1
        saved.emptied.pop(block, None)
        saved.evictable.pop(block, None)
        self._holders[block] += 1

    def _let_go(self, block: int) -> None:
        saved = self._saved
        self._holders[block] -= 1
        if self._holders[block] <= 0:
            del self._holders[block]
            (saved.evictable if block in saved.content else saved.emptied)[block] = None

    def _clear(self) -> None:
        saved = self._saved
        saved.content.clear()
        saved.emptied |= saved.evictable
        saved.evictable.clear()

    def _chain(self, request_id: str) -> PrefixChain:
        saved = self._saved
        keys = []
        for block in saved.tables[request_id][: saved.full[request_id]]:
            if (key := saved.content.get(block)) is None:
                break
            keys.append(key)
        return PrefixChain(
            request_id=request_id,
            tenant=saved.tenants.get(request_id, ""),
            keys=list(keys),
            num_found=saved.found[request_id],
        )

    def _remember(self, request_id: str) -> None:
        chain = self._chain(request_id)
        if chain.keys:
            self._chains.append(chain)
            self._num_keys += len(chain.keys)
        while len(self._chains) > MAX_CHAINS or (
            self._num_keys > MAX_KEYS and len(self._chains) > 1
        ):
            self._num_keys -= len(self._chains.popleft().keys)
