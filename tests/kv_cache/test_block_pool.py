"""Many blocks at once: the same as one after the other, in the same order of eviction."""

from __future__ import annotations

from random import Random

from tests.kv_cache.test_manager import BLOCK, compute, make_request
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.manager import KVCacheManager


def take(pool: BlockPool, count: int, together: bool) -> list[int]:
    return pool.allocate_many(count) if together else [pool.allocate() for _ in range(count)]


def drive(together: bool) -> list[list[int]]:
    """Allocations and releases at random, half of the blocks with content; what was allocated each time."""
    random, pool = Random(1), BlockPool(24)
    held: list[list[int]] = []
    taken = []
    for turn in range(200):
        if held and (random.random() < 0.5 or pool.num_free < 6):
            blocks = held.pop(random.randrange(len(held)))
            if together:
                pool.release_all(blocks)
            else:
                for block in blocks:
                    pool.release(block)
            continue
        blocks = take(pool, random.randrange(1, 7), together)
        full = blocks[: random.randrange(len(blocks) + 1)]
        contents = [b"%d %d" % (turn % 9, at) for at in range(len(full))]
        if together:
            pool.remember_all(full, contents)
        else:
            for block, content in zip(full, contents):
                pool.remember(block, content)
        held.append(blocks)
        taken.append(blocks)
        pool.check_integrity({block: 1 for each in held for block in each})
    return taken


def test_many_are_the_same_as_one_by_one() -> None:
    assert drive(together=True) == drive(together=False)


def test_blocks_have_room_only_if_nothing_has_to_be_done() -> None:
    """A full last block, one that another sample holds too, one the executor has not seen: each takes an allocation."""
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
