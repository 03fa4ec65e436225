"""Which prefixes the cache and its tiers hold, for people: their parents, hits and tenants."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.request import BlockKey, Request
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.prefix_survey import CopiedBlock, Looks, PrefixSurvey
from twostroke.kv_cache.tier_directory import TierDirectory

MEMORY = "memory"
IN_MEMORY = (MEMORY,)
# With tiers, each removal looks at this many contents, in turn: what is lost is forgotten.
LOOKS_PER_REMOVAL = 4


@dataclass(slots=True)
class _Entry:
    """What is known of one block's content."""

    parent: BlockKey | None
    tenants: dict[str, None]
    hits: int = 0


class PrefixBook:
    """A ``CacheWatcher`` that remembers the parent, the tenants and the hits of each content.

    What left the KV cache is remembered while a tier has it. What a tier had from before the start
    is not in the tree: its tokens are not known.

    Args:
        num_groups: Groups of layers; the tree shows the blocks of the first.
    """

    def __init__(
        self, pool: BlockPool, directory: TierDirectory, block_size: int, num_groups: int = 1
    ) -> None:
        self._pool, self._directory, self.block_size = pool, directory, block_size
        self._num_groups = num_groups
        self._entries: dict[BlockKey, _Entry] = {}
        self._to_look_at: list[BlockKey] = []

    def on_stored(self, request: Request, first: int, blocks: list[int]) -> None:
        hashes, step = request.block_hashes, self._num_groups
        for index in range(-(-first // step) * step, first + len(blocks), step):
            parent = hashes[index - step] if index else None
            entry = self._entries.setdefault(hashes[index], _Entry(parent, {}))
            entry.tenants[request.tenant] = None

    def on_removed(self, block: int, key: BlockKey, *, is_wrong: bool = False) -> None:
        if is_wrong or not self._directory.tiers:
            self._entries.pop(key, None)
            return
        self._forget_lost()

    def on_found(self, request: Request, num_blocks: int) -> None:
        for key in request.block_hashes[:num_blocks]:
            if (entry := self._entries.get(key)) is not None:
                entry.hits += 1
                entry.tenants[request.tenant] = None

    def on_cleared(self) -> None:
        self._entries.clear()

    def begin_survey(self, tenant: str | None, now: float) -> OpenSurvey:
        """A copy of what is held, to be made piece by piece.

        Args:
            tenant: Only what this tenant stored or found, without names; ``None``: everything.
            now: On the clock of ``pin``.
        """
        return OpenSurvey(self, list(self._entries), tenant, now)

    def copy(self, key: BlockKey, tenant: str | None, now: float) -> CopiedBlock | None:
        """One content; ``None`` if it is not the tenant's, or neither cache nor tier has it now."""
        entry = self._entries.get(key)
        if entry is None or not (tenant is None or tenant in entry.tenants):
            return None
        tiers = self._where(key)
        if not tiers:
            del self._entries[key]
            return None
        until = self._pool.pinned.get(key)
        pinned = None if until is None or until <= now else round(until - now, 1)
        return CopiedBlock(entry.parent, Looks(tiers, (*entry.tenants,), entry.hits, pinned))

    def _forget_lost(self) -> None:
        """Forget what neither the cache nor a tier has any more: some of it each time."""
        if not self._to_look_at:
            self._to_look_at = list(self._entries)
        for key in self._to_look_at[-LOOKS_PER_REMOVAL:]:
            if self._pool.find(key) is None and not self._directory.homes(key):
                self._entries.pop(key, None)
        del self._to_look_at[-LOOKS_PER_REMOVAL:]

    def _where(self, key: BlockKey) -> tuple[str, ...]:
        in_memory = self._pool.find(key) is not None
        if not self._directory.tiers:
            return IN_MEMORY if in_memory else ()
        homes = self._directory.homes(key)
        return (MEMORY, *homes) if in_memory else (*homes,)


class OpenSurvey:
    """A survey in the making. The engine's thread calls everything, between steps."""

    def __init__(
        self, book: PrefixBook, keys: list[BlockKey], tenant: str | None, now: float
    ) -> None:
        self._book, self._tenant, self._now = book, tenant, now
        self._keys, self._num_looked_at = keys, 0
        # One object for all that look alike: the collector of garbage, which stops the engine too,
        # runs the more often the more objects are made.
        self._different: dict[Looks, Looks] = {}
        self._parents: dict[BlockKey, BlockKey | None] = {}
        self._looks: dict[BlockKey, Looks] = {}

    def advance(self, count: int) -> PrefixSurvey | None:
        """Copy ``count`` blocks more. Returns the survey once it is whole."""
        end = self._num_looked_at + count
        for key in self._keys[self._num_looked_at : end]:
            if (block := self._book.copy(key, self._tenant, self._now)) is not None:
                self._parents[key] = block.parent
                self._looks[key] = self._different.setdefault(block.looks, block.looks)
        self._num_looked_at = end
        if end < len(self._keys):
            return None
        with_names, size = self._tenant is None, self._book.block_size
        return PrefixSurvey(self._parents, self._looks, with_names, size)
