"""Many blocks at once: the same as one after the other, in the same order of eviction."""

from __future__ import annotations

from itertools import takewhile
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.kv_cache.test_manager import BLOCK, compute, make_request
from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.manager import KVCacheManager


def take(pool: BlockPool, count: int, together: bool) -> list[int]:
    return pool.allocate_many(count) if together else [pool.allocate() for _ in range(count)]


def drive(together: bool) -> list[list[int]]:
    """Allocations and releases at random, half of the blocks with content; what was allocated each
    time.
    """
    random, pool = Random(1), BlockPool(24)
    held: list[tuple[list[int], list[BlockKey]]] = []
    taken = []
    for turn in range(200):
        if held and (random.random() < 0.5 or pool.num_free < 6):
            blocks, contents = held.pop(random.randrange(len(held)))
            if together:
                pool.release_all(blocks, contents)
            else:
                for at in reversed(range(len(blocks))):
                    pool.release_all(blocks[at : at + 1], contents[at : at + 1])
            continue
        blocks = take(pool, random.randrange(1, 7), together)
        full = blocks[: random.randrange(len(blocks) + 1)]
        contents = [b"%d %d" % (turn % 9, at) for at in range(len(full))]
        if together:
            pool.remember_all(full, contents)
        else:
            for block, content in zip(full, contents):
                pool.remember_all([block], [content])
        held.append((blocks, contents))
        taken.append(blocks)
        pool.check_integrity({block: 1 for blocks, _ in held for block in blocks})
        assert len(pool._queue) <= 3 * pool.num_blocks, "what was evicted is kept for ever"
    return taken


def test_many_are_the_same_as_one_by_one() -> None:
    assert drive(together=True) == drive(together=False)


class OneByOne:
    """The pool as a reference: what each block holds, and free blocks in lists."""

    def __init__(self, num_blocks: int) -> None:
        self.blank, self.kept = list(range(num_blocks))[::-1], list[int]()
        self.holders, self.content = [0] * num_blocks, [b""] * num_blocks

    def find(self, content: bytes) -> int | None:
        return self.content.index(content) if content in self.content else None

    def allocate(self) -> int:
        block = self.blank.pop() if self.blank else self.kept.pop(0)
        self.holders[block], self.content[block] = 1, b""
        return block

    def share(self, block: int) -> None:
        if not self.holders[block]:
            self.kept.remove(block)
        self.holders[block] += 1

    def release(self, block: int) -> None:
        self.holders[block] -= 1
        if not self.holders[block]:
            (self.kept if self.content[block] else self.blank).append(block)


@given(st.randoms(use_true_random=False))
def test_a_pool_is_as_if_each_block_were_looked_at(random: Random) -> None:
    """Tables that begin with what others wrote, end in any order, and write the same as others."""
    pool, reference = BlockPool(12), OneByOne(12)
    tables: list[tuple[list[int], list[BlockKey]]] = []
    for _ in range(150):
        if tables and (random.random() < 0.4 or pool.num_free < 5):
            blocks, contents = tables.pop(random.randrange(len(tables)))
            pool.release_all(blocks, contents)
            for block in reversed(blocks):
                reference.release(block)
        else:
            keys: list[BlockKey] = [
                b"%d %d" % (random.randrange(4), at) for at in range(random.randrange(1, 4))
            ]
            found = pool.find_first(keys, len(keys))
            assert found == list(
                takewhile(lambda block: block is not None, map(reference.find, map(bytes, keys)))
            )
            pool.share_found(keys[: len(found)])
            new = pool.allocate_many(len(keys) + 1 - len(found))
            for block in found:
                reference.share(block)
            assert new == [reference.allocate() for _ in new]
            pool.remember_all(new[:-1], keys[len(found) :])
            for block, key in zip(new, keys[len(found) :]):
                if reference.find(bytes(key)) is None:
                    reference.content[block] = bytes(key)
            tables.append((found + new, keys))
        assert len(pool._queue) <= 6 * pool.num_blocks, (
            "what was revived and freed again is kept for ever"
        )
        assert pool.free_in_order() == reference.blank[::-1] + reference.kept
        pool.check_integrity(
            {block: count for block, count in enumerate(reference.holders) if count}
        )


def test_blocks_have_room_only_if_nothing_has_to_be_done() -> None:
    """A full last block, one that another sample holds too, one the executor has not seen: each
    takes an allocation.
    """
    kv = KVCacheManager(10, BLOCK)
    leader = make_request("s#0", 6)
    compute(kv, leader)
    assert kv.tables_with_room([leader])[0] is kv.block_ids(leader)
    follower = make_request("s#1", 6, leader=leader)
    kv.admit(follower, kv.find_prefix(follower))
    assert kv.tables_with_room([leader]) == [None]
    full = make_request("full", 8, first=50)
    compute(kv, full)
    assert kv.tables_with_room([leader, full]) == [None, None]
    assert kv.num_blocks_promised([leader, full]) == 0
    full.token_ids.append(1)
    assert kv.num_blocks_promised([leader, full]) == 1


def test_a_block_is_added_only_where_nothing_else_is_to_be_done() -> None:
    kv = KVCacheManager(4, BLOCK)
    leader = make_request("s#0", 6)
    compute(kv, leader)
    follower = make_request("s#1", 6, leader=leader)
    kv.admit(follower, kv.find_prefix(follower))
    assert kv.grow(leader) is None  # its last block has room, and is shared
    full = make_request("full", 4, first=50)
    compute(kv, full)
    before = list(kv.block_ids(full))
    grown = kv.grow(full)
    assert grown is kv.block_ids(full) and grown[:-1] == before
    assert kv.tables_with_room([full]) == [grown]
    full.num_computed_tokens = 8
    assert kv.pool.num_free == 0 and kv.grow(full) is None
