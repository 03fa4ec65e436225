"""The block pool against a plain reference: who holds what, what is found, what is evicted next."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_pool import BlockPool


class PlainPool:
    """What each block holds, and the free blocks in two lists."""

    def __init__(self, num_blocks: int) -> None:
        self.empty, self.kept = list(range(num_blocks))[::-1], list[int]()
        self.holders, self.content = [0] * num_blocks, [b""] * num_blocks

    def find(self, content: bytes) -> int | None:
        return self.content.index(content) if content in self.content else None

    def allocate(self) -> int:
        block = self.empty.pop() if self.empty else self.kept.pop(0)
        self.holders[block], self.content[block] = 1, b""
        return block

    def hold(self, block: int) -> None:
        if not self.holders[block]:
            self.kept.remove(block)
        self.holders[block] += 1

    def release(self, block: int) -> None:
        self.holders[block] -= 1
        if not self.holders[block]:
            (self.kept if self.content[block] else self.empty).append(block)

    def index(self, block: int, content: bytes) -> None:
        if self.find(content) is None:
            self.content[block] = content


@given(st.randoms(use_true_random=False))
def test_a_pool_is_as_its_plain_reference(random: Random) -> None:
    """Tables that begin with what others wrote, end in any order, and write the same as others."""
    pool, reference = BlockPool(12), PlainPool(12)
    tables: list[list[int]] = []
    for _ in range(150):
        if tables and (random.random() < 0.4 or pool.num_free < 5):
            blocks = tables.pop(random.randrange(len(tables)))
            for block in reversed(blocks):
                if random.random() < 0.1 and not pool.is_shared(block):
                    pool.unindex(block)
                    reference.content[block] = b""
                pool.release(block)
                reference.release(block)
        else:
            tables.append(begin_table(random, pool, reference))
        assert pool.free_in_order() == reference.empty[::-1] + reference.kept
        assert pool.num_free == len(pool.free_in_order())
        holders = {block: count for block, count in enumerate(reference.holders) if count}
        pool.check_integrity(holders)
        cached: dict[BlockKey, int] = {
            content: block for block, content in enumerate(reference.content) if content
        }
        assert pool.cached() == cached and pool.num_cached == len(cached)
        assert [pool.is_shared(b) for b in range(12)] == [n > 1 for n in reference.holders]
        assert [pool.is_free(b) for b in range(12)] == [n == 0 for n in reference.holders]


def begin_table(random: Random, pool: BlockPool, reference: PlainPool) -> list[int]:
    """A table of one to four blocks, all but the last full; equal beginnings are shared."""
    keys = [b"%d %d" % (random.randrange(4), index) for index in range(random.randrange(1, 4))]
    blocks: list[int] = []
    for key in keys:
        block = pool.find(key)
        assert block == reference.find(key)
        if block is None:
            break
        pool.hold(block)
        reference.hold(block)
        blocks.append(block)
    num_found = len(blocks)
    for _ in range(len(keys) + 1 - num_found):
        blocks.append(pool.allocate())
        assert blocks[-1] == reference.allocate()
    for block, key in zip(blocks[num_found:], keys[num_found:]):
        pool.index(block, key)
        reference.index(block, key)
    return blocks
