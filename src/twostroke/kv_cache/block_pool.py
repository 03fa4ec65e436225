"""A fixed set of KV blocks: who holds each, which content each keeps, and which goes next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from twostroke.core.request import BlockKey


class BlockPool:
    """Reference counts, the content index of the prefix cache, and eviction in order of last use.

    A block is *free* while nobody holds it. A free block may still keep its content: then a lookup
    by content finds and revives it, until ``allocate`` needs the space and evicts it. Blocks
    without content go first, then the least recently used. Most of this is done for all blocks of a
    request at once, by functions that Python has for that.

    Args:
        num_blocks: Blocks have ids ``0 .. num_blocks - 1``.
        is_indexed: Without an index, until ``index`` is called, contents are neither found nor
            remembered. Whoever asks for that knows that all of them differ.

    Attributes:
        num_free: Blocks that nobody holds.
        block_of: The index, by content.
    """

    def __init__(self, num_blocks: int, *, is_indexed: bool = True) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.is_indexed = is_indexed
        self._sharers: dict[
            int, int
        ] = {}  # how many hold a block beside the first one, where anybody does
        self.block_of: dict[BlockKey, int] = {}
        # Full blocks that are held and not in the index: equal ones were there before, or they have
        # been forgotten.
        self._strays: set[int] = set()
        self._blank = list(
            reversed(range(num_blocks))
        )  # free blocks without content, the last one next
        self._kept: set[BlockKey] = set()  # the contents of the other free blocks
        # Those in the order in which they became free. The first ``_num_gone`` entries are used up,
        # and so are as many of the next ones of a content as it was ``_revived`` since.
        self._queue: list[BlockKey] = []
        self._queued: list[int] = []  # without an index, their blocks
        self._num_gone = 0
        self._revived: dict[BlockKey, int] = {}

    @property
    def num_cached(self) -> int:
        """Blocks whose content a lookup can find, held or free; without an index the free ones."""
        return len(self.block_of) if self.is_indexed else len(self._queue) - self._num_gone

    def kept(self) -> dict[BlockKey, int]:
        """Without an index: free blocks by their contents."""
        return dict(zip(self._queue[self._num_gone :], self._queued[self._num_gone :]))

    def index(self, block_of: dict[BlockKey, int]) -> None:
        """From now on, look after the contents of blocks; they are those of ``block_of``, of which
        ``kept`` is part.
        """
        self.block_of = block_of
        self._kept = set(self._queue[self._num_gone :])
        self._queued.clear()
        self.is_indexed = True

    def num_kept(self, contents: Sequence[BlockKey]) -> int:
        """How many of the contents are kept by blocks that are free."""
        return sum(map(self._kept.__contains__, contents))

    def free_in_order(self) -> list[int]:
        """The free blocks, the one first that goes next."""
        if not self.is_indexed:
            return [*reversed(self._blank), *self._queued[self._num_gone :]]
        return [*reversed(self._blank), *map(self.block_of.__getitem__, self._kept_in_order())]

    def is_shared(self, block: int) -> bool:
        """Whether several hold it."""
        return block in self._sharers

    def allocate(self) -> int:
        """Take a free block for one holder, evicting its content. The caller has checked
        ``num_free``.
        """
        self.num_free -= 1
        return self._blank.pop() if self._blank else self._evict(1)[0]

    def allocate_many(self, count: int) -> list[int]:
        """``allocate``, ``count`` times."""
        self.num_free -= count
        blank = self._blank
        if not blank:
            return self._evict(count)
        first = len(blank) - count
        if first < 0:
            self._blank = []
            return blank[::-1] + self._evict(-first)
        found = blank[first:]
        del blank[first:]
        found.reverse()
        return found

    def _evict(self, count: int) -> list[int]:
        if self._num_gone > self.num_blocks:
            del self._queue[: self._num_gone], self._queued[: self._num_gone]
            self._num_gone = 0
        end = self._num_gone + count
        if not self.is_indexed:
            found, self._num_gone = self._queued[self._num_gone : end], end
            return found
        contents = self._queue[self._num_gone : end]
        if self._revived and not self._revived.keys().isdisjoint(contents):
            contents = self._skip_revived(count)
        else:
            self._num_gone = end
        self._kept.difference_update(contents)
        return list(map(self.block_of.pop, contents))

    def _skip_revived(self, count: int) -> list[BlockKey]:
        """What the next ``count`` free blocks keep, where entries of the queue do not count."""
        queue, revived = self._queue, self._revived
        found: list[BlockKey] = []
        while len(found) < count:
            content = queue[self._num_gone]
            self._num_gone += 1
            if content not in revived:
                found.append(content)
            elif revived[content] == 1:
                del revived[content]
            else:
                revived[content] -= 1
        return found

    def _kept_in_order(self) -> list[BlockKey]:
        """What free blocks keep, the content first that is evicted next."""
        revived, kept = dict(self._revived), []
        for content in self._queue[self._num_gone :]:
            if revived.get(content):
                revived[content] -= 1
            else:
                kept.append(content)
        return kept

    def share(self, block: int) -> None:
        """Add a holder to a block that is held."""
        self._sharers[block] = self._sharers.get(block, 0) + 1

    def share_found(self, contents: Sequence[BlockKey]) -> None:
        """Add a holder to the block of each content, which is in the index; a free one is
        revived.
        """
        for content in contents:
            if content in self._kept:
                self._kept.remove(content)
                self.num_free -= 1
                self._revived[content] = self._revived.get(content, 0) + 1
            else:
                self.share(self.block_of[content])
        if len(self._queue) > 4 * self.num_blocks:
            self._queue, self._num_gone = self._kept_in_order(), 0
            self._revived.clear()

    def release(self, block: int) -> None:
        """Remove one of several holders."""
        self._sharers[block] -= 1
        if not self._sharers[block]:
            del self._sharers[block]

    def release_all(self, blocks: Sequence[int], contents: Sequence[BlockKey]) -> None:
        """Remove a holder of each block, the last one first. The last holder leaves a free block.

        Args:
            contents: Of the first blocks, all of which went through ``remember_all``. What the
                index has is kept.
        """
        if self._sharers and any(map(self._sharers.__contains__, blocks)):
            alone = [block not in self._sharers for block in blocks]
            for block, is_free in zip(blocks, alone):
                if not is_free:
                    self.release(block)
            blocks, contents = list(compress(blocks, alone)), list(compress(contents, alone))
        self.num_free += len(blocks)
        self._blank += blocks[: len(contents) - 1 : -1] if contents else blocks[::-1]
        if not self.is_indexed:
            self._queue += contents[::-1]
            self._queued += blocks[: len(contents)][::-1]
            return
        if self._strays and not self._strays.isdisjoint(blocks):
            own = [block not in self._strays for block in blocks[: len(contents)]]
            self._blank += [block for block, is_own in zip(blocks, own) if not is_own][::-1]
            self._strays.difference_update(blocks)
            contents = list(compress(contents, own))
        kept = contents[::-1]
        self._queue += kept
        self._kept.update(kept)

    def remember_all(self, blocks: Sequence[int], contents: Sequence[BlockKey]) -> None:
        """Index full blocks by their contents, in this order, unless an equal one is indexed
        already.
        """
        known = len(self.block_of)
        found = list(map(self.block_of.setdefault, contents, blocks))
        if len(self.block_of) - known < len(blocks):
            self._strays.update(
                [block for block, indexed in zip(blocks, found) if block != indexed]
            )

    def forget(self, block: int, content: BlockKey) -> None:
        """Drop the content of a block that is held from the index."""
        if self.block_of.get(content) == block:
            del self.block_of[content]
            self._strays.add(block)

    def find_first(self, contents: Sequence[BlockKey], count: int) -> list[int]:
        """The blocks of the first ``count`` contents, up to the first that is not there."""
        get, found = self.block_of.get, []
        for index in range(count):
            block = get(contents[index])
            if block is None:
                break
            found.append(block)
        return found

    def check_integrity(self, holders: dict[int, int]) -> None:
        """Assert that the pool agrees with itself and with the holders that the block tables
        imply.
        """
        free, kept = set(self.free_in_order()), {self.block_of[content] for content in self._kept}
        num_kept = len(self._kept) if self.is_indexed else self.num_cached
        assert len(free) == self.num_free == len(self._blank) + num_kept, "a block is free twice"
        assert self._strays.isdisjoint(free), "a free block counts as held"
        for block in range(self.num_blocks):
            found = 0 if block in free else 1 + self._sharers.get(block, 0)
            assert found == holders.get(block, 0), f"block {block}: wrong number of holders"
            assert block not in free or block not in self._sharers, (
                f"block {block}: free and held disagree"
            )
        assert len(set(self.block_of.values())) == len(self.block_of), "a block has two contents"
        assert not self.is_indexed or kept == free.intersection(self.block_of.values()), (
            "a block is in a wrong queue"
        )
