"""A fixed set of KV blocks: who holds each, which content each keeps, and which goes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Reference counts, the content index of the prefix cache, and eviction in order of last use.

    A block is *free* while nobody holds it. A free block may still keep its content: then a lookup by content hash
    finds and revives it, until ``allocate`` needs the space and evicts it. Blocks without content go first, then the
    least recently used.

    Args:
        num_blocks: Blocks have ids ``0 .. num_blocks - 1``.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._sharers: dict[int, int] = {}  # how many hold a block beside the first one, where anybody does
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # Free blocks: those without content, the last one next, and the others, the first one next once those are gone.
        self._blank = list(reversed(range(num_blocks)))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._kept)

    @property
    def num_cached(self) -> int:
        """Blocks whose content a lookup can find, held or free."""
        return len(self._block_of)

    def keeps(self, block: int) -> bool:
        """Whether a block is free and keeps its content."""
        return block in self._kept

    def free_in_order(self) -> list[int]:
        """The free blocks, the one first that goes next."""
        return [*reversed(self._blank), *self._kept]

    @property
    def shares(self) -> bool:
        """Whether any block has several holders."""
        return bool(self._sharers)

    def is_shared(self, block: int) -> bool:
        """Whether several hold it."""
        return block in self._sharers

    def allocate(self) -> int:
        """Take a free block for one holder, evicting its content. The caller has checked ``num_free``."""
        if self._blank:
            return self._blank.pop()
        block, _ = self._kept.popitem(last=False)
        self.forget(block)
        return block

    def allocate_many(self, count: int) -> list[int]:
        """``allocate``, ``count`` times."""
        first = max(len(self._blank) - count, 0)
        found = self._blank[: first - 1 if first else None : -1]
        del self._blank[first:]
        pop, hash_of, block_of = self._kept.popitem, self._hash_of, self._block_of
        for _ in range(count - len(found)):
            block, _ = pop(False)
            found.append(block)
            content = hash_of[block]
            assert content is not None
            del block_of[content]
            hash_of[block] = None
        return found

    def share(self, block: int) -> None:
        """Add a holder to a block that is held, or free with its content (it is revived); never to one free without."""
        if block in self._kept:
            del self._kept[block]
        else:
            self._sharers[block] = self._sharers.get(block, 0) + 1

    def release(self, block: int) -> None:
        """Remove a holder. The last one leaves a free block that keeps its content."""
        self.release_all((block,))

    def release_all(self, blocks: Iterable[int]) -> None:
        """``release`` of each, in this order."""
        hash_of, sharers, blank, kept = self._hash_of, self._sharers, self._blank, self._kept
        for block in blocks:
            if sharers and block in sharers:
                sharers[block] -= 1
                if not sharers[block]:
                    del sharers[block]
            elif hash_of[block] is None:
                blank.append(block)
            else:
                kept[block] = None

    def remember(self, block: int, content: bytes) -> None:
        """Index a full block by the hash of its content, unless an equal block is indexed already."""
        if content not in self._block_of and self._hash_of[block] is None:
            self._block_of[content] = block
            self._hash_of[block] = content

    def remember_all(self, blocks: Sequence[int], contents: Sequence[bytes]) -> None:
        """``remember`` of each block with its content, in this order."""
        hash_of, block_of = self._hash_of, self._block_of
        for block, content in zip(blocks, contents):
            if content not in block_of and hash_of[block] is None:
                block_of[content] = block
                hash_of[block] = content

    def forget(self, block: int) -> None:
        """Drop the block's content from the index."""
        content = self._hash_of[block]
        if content is not None:
            del self._block_of[content]
            self._hash_of[block] = None

    def find(self, content: bytes) -> int | None:
        return self._block_of.get(content)

    def find_first(self, contents: Sequence[bytes], count: int) -> list[int]:
        """The blocks of the first ``count`` contents, up to the first that is not there."""
        get, found = self._block_of.get, []
        for index in range(count):
            block = get(contents[index])
            if block is None:
                break
            found.append(block)
        return found

    def are_new(self, contents: Sequence[bytes]) -> bool:
        """Whether none of the contents is in the index, nor there twice."""
        return self._block_of.keys().isdisjoint(contents) and len(set(contents)) == len(contents)

    def check_integrity(self, holders: dict[int, int]) -> None:
        """Assert that the pool agrees with itself and with the holders that the block tables imply."""
        free = set(self.free_in_order())
        assert len(free) == self.num_free, "a block is free twice"
        for block in range(self.num_blocks):
            found = 0 if block in free else 1 + self._sharers.get(block, 0)
            assert found == holders.get(block, 0), f"block {block}: wrong number of holders"
            assert block not in free or block not in self._sharers, f"block {block}: free and held disagree"
            content = self._hash_of[block]
            assert content is None or self._block_of.get(content) == block, f"block {block}: index disagrees"
            assert block not in free or (block in self._kept) == (content is not None), (
                f"block {block}: in a wrong queue"
            )
        assert len(self._block_of) == sum(content is not None for content in self._hash_of)
