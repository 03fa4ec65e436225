"""A fixed set of KV blocks: which are held, what they contain, which is evicted next."""

from __future__ import annotations

from collections import OrderedDict

from twostroke.core.request import BlockKey


class BlockPool:
    """Reference counts, the content index of the prefix cache, and eviction in LRU order.

    A block is *free* while no table holds it. A free block may keep its content: then a lookup by
    content finds and revives it, until ``allocate`` needs the space and evicts it. Blocks without
    content are taken first, then the least recently used.

    Args:
        num_blocks: Blocks have ids ``0 .. num_blocks - 1``.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._content: list[BlockKey | None] = [None] * num_blocks  # of blocks in the index
        self._block_of: dict[BlockKey, int] = {}  # the index
        self._empty = list(reversed(range(num_blocks)))  # free, without content; the last goes next
        self._evictable: OrderedDict[int, None] = OrderedDict()  # free, with content; oldest first

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return len(self._empty) + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Blocks whose content a lookup can find, held or free."""
        return len(self._block_of)

    def is_free(self, block: int) -> bool:
        return not self._num_holders[block]

    def is_shared(self, block: int) -> bool:
        """Whether several tables hold it."""
        return self._num_holders[block] > 1

    def allocate(self) -> int:
        """Take a free block for one holder; evict its content. The caller checks ``num_free``."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self._forget_content(block)
        self._num_holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a holder. A free block is revived with its content."""
        if not self._num_holders[block]:
            del self._evictable[block]
        self._num_holders[block] += 1

    def release(self, block: int) -> None:
        """Remove a holder; the last one leaves a free block, which keeps its content if indexed."""
        self._num_holders[block] -= 1
        if not self._num_holders[block]:
            if self._content[block] is None:
                self._empty.append(block)
            else:
                self._evictable[block] = None

    def find(self, content: BlockKey) -> int | None:
        """The block with this content, held or free."""
        return self._block_of.get(content)

    def index(self, block: int, content: BlockKey) -> None:
        """Let lookups find a full block by its content, unless they find an equal one already."""
        if self._block_of.setdefault(content, block) == block:
            self._content[block] = content

    def unindex(self, block: int) -> None:
        """Let no lookup find a held block any more."""
        self._forget_content(block)

    def _forget_content(self, block: int) -> None:
        content = self._content[block]
        if content is not None:
            del self._block_of[content]
            self._content[block] = None

    def free_in_order(self) -> list[int]:
        """The free blocks, the one first that is allocated next."""
        return [*reversed(self._empty), *self._evictable]

    def cached(self) -> dict[BlockKey, int]:
        """A copy of the index: blocks by content."""
        return dict(self._block_of)

    def check_integrity(self, num_holders: dict[int, int]) -> None:
        """Assert that the pool agrees with itself and with the holders that block tables imply."""
        free = self.free_in_order()
        assert len(set(free)) == len(free), "a block is free twice"
        for block, count in enumerate(self._num_holders):
            assert count == num_holders.get(block, 0), f"block {block}: wrong number of holders"
            assert (count == 0) == (block in set(free)), f"block {block}: free and held disagree"
        indexed = {block: content for content, block in self._block_of.items()}
        assert len(indexed) == len(self._block_of), "a block has two contents"
        for block, content in enumerate(self._content):
            assert indexed.get(block) == content, f"block {block}: content and index disagree"
        assert all(self._content[block] is None for block in self._empty)
        assert all(self._content[block] is not None for block in self._evictable)
