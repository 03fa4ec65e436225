"""A fixed set of KV blocks: which are held, what they contain, which is evicted next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from twostroke.core.request import BlockKey


class BlockPool:
    """Reference counts, the content index of the prefix cache, and eviction in LRU order.

    A block is *free* while no table holds it. A free block may keep its content: then a lookup by
    content finds and revives it, until ``allocate`` needs the space and evicts it. Blocks without
    content are taken first, then the least recently used; those of pinned contents last.

    Args:
        num_blocks: Blocks have ids ``0 .. num_blocks - 1``.

    Attributes:
        on_evict: Called with a block and its content before ``allocate`` evicts it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_holders = [0] * num_blocks
        self._content: list[BlockKey | None] = [None] * num_blocks  # of blocks in the index
        self._block_of: dict[BlockKey, int] = {}  # the index
        self._empty = list(reversed(range(num_blocks)))  # free, without content; the last goes next
        self._evictable: OrderedDict[int, None] = OrderedDict()  # free, with content; oldest first
        self._kept: OrderedDict[int, None] = OrderedDict()  # the same, of pinned contents
        self.pinned: dict[BlockKey, float] = {}  # until when, as the manager says
        self.on_evict: Callable[[int, BlockKey], None] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that no table holds."""
        return len(self._empty) + len(self._evictable) + len(self._kept)

    @property
    def num_cached(self) -> int:
        """Blocks whose content a lookup can find, held or free."""
        return len(self._block_of)

    def content(self, block: int) -> BlockKey | None:
        """What lookups find the block by, if they do."""
        return self._content[block]

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
            block, _ = (self._evictable or self._kept).popitem(last=False)
            content = self._content[block]
            if self.on_evict is not None and content is not None:
                self.on_evict(block, content)
            self._forget_content(block)
        self._num_holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Add a holder. A free block is revived with its content."""
        if not self._num_holders[block]:
            queue = self._evictable if block in self._evictable else self._kept
            del queue[block]
        self._num_holders[block] += 1

    def release(self, block: int) -> None:
        """Remove a holder; the last one leaves a free block, which keeps its content if indexed."""
        self._num_holders[block] -= 1
        if not self._num_holders[block]:
            content = self._content[block]
            if content is None:
                self._empty.append(block)
            else:
                queue = self._kept if content in self.pinned else self._evictable
                queue[block] = None

    def find(self, content: BlockKey) -> int | None:
        """The block with this content, held or free."""
        return self._block_of.get(content)

    def index(self, block: int, content: BlockKey) -> bool:
        """Let lookups find a full block by its content, unless they find an equal one already.

        Returns whether they find this one.
        """
        if self._block_of.setdefault(content, block) != block:
            return False
        self._content[block] = content
        return True

    def unindex(self, block: int) -> None:
        """Let no lookup find a held block any more."""
        self._forget_content(block)

    def pin(self, content: BlockKey, until: float) -> None:
        """Evict this content after all others, until ``unpin`` or ``clear``."""
        self.pinned[content] = max(until, self.pinned.get(content, until))
        block = self._block_of.get(content)
        if block is not None and block in self._evictable:
            del self._evictable[block]
            self._kept[block] = None

    def unpin(self, content: BlockKey) -> None:
        """Treat this content like all others again."""
        self.pinned.pop(content, None)
        block = self._block_of.get(content)
        if block is not None and block in self._kept:
            del self._kept[block]
            self._evictable[block] = None

    def clear(self) -> int:
        """Forget the content of all blocks and every pin. Returns how many had one.

        Blocks that are held lose their content only for lookups.
        """
        count = len(self._block_of)
        self._empty += [*self._evictable, *self._kept]
        for block in self._block_of.values():
            self._content[block] = None
        for emptied in (self._block_of, self._evictable, self._kept, self.pinned):
            emptied.clear()
        return count

    def _forget_content(self, block: int) -> None:
        content = self._content[block]
        if content is not None:
            del self._block_of[content]
            self._content[block] = None

    def free_in_order(self) -> list[int]:
        """The free blocks, the one first that is allocated next."""
        return [*reversed(self._empty), *self._evictable, *self._kept]

    def cached(self) -> dict[BlockKey, int]:
        """A copy of the index: blocks by content."""
        return dict(self._block_of)

    def check_integrity(self, num_holders: dict[int, int]) -> None:
        """Assert that the pool agrees with itself and with the holders that block tables imply."""
        free = set(self.free_in_order())
        assert len(free) == self.num_free, "a block is free twice"
        held = {block: count for block, count in enumerate(self._num_holders) if count}
        assert held == num_holders, "tables imply other numbers of holders"
        assert len(free) + len(held) == self.num_blocks, "a block is neither free nor held"
        assert free.isdisjoint(held), "a block is free and held"
        indexed = {block: content for content, block in self._block_of.items()}
        assert len(indexed) == len(self._block_of), "a block has two contents"
        contents = {block: key for block, key in enumerate(self._content) if key is not None}
        assert indexed == contents, "content and index disagree"
        assert all(self._content[block] is None for block in self._empty)
        assert all(self._content[block] not in (None, *self.pinned) for block in self._evictable)
        assert all(self._content[block] in self.pinned for block in self._kept)
