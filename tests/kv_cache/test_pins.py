"""Protects: no tenant takes the room for pins from the others, and pins end when they should."""

from __future__ import annotations

from twostroke.core.request import BlockKey
from twostroke.kv_cache.block_pool import BlockPool
from twostroke.kv_cache.pins import Pins


def keys(tenant: str, count: int) -> list[BlockKey]:
    return [f"{tenant}{number}".encode() for number in range(count)]


def test_a_tenant_leaves_as_many_as_it_has() -> None:
    """Of 20 blocks half may be pinned: 5 by the first, 2 by the next, 1 by the third."""
    pins = Pins(BlockPool(20))
    assert not pins.pin(keys("a", 6), 10.0, "a")
    assert pins.pin(keys("a", 5), 10.0, "a")
    assert pins.pin(keys("a", 5), 20.0, "a")  # the same again needs no room
    assert not pins.pin(keys("b", 3), 10.0, "b") and pins.pin(keys("b", 2), 10.0, "b")
    assert not pins.pin(keys("c", 2), 10.0, "c") and pins.pin(keys("c", 1), 10.0, "c")
    assert not pins.pin([*keys("a", 6)], 10.0, "a")
    assert pins.by_tenant() == {"a": 5, "b": 2, "c": 1}


def test_without_tenants_half_of_the_cache_can_be_pinned() -> None:
    pool = BlockPool(20)
    pins = Pins(pool)
    assert not pins.pin(keys("", 11), 10.0)
    assert pins.pin(keys("", 10), 10.0) and len(pool.pinned) == 10


def test_pins_end_and_their_room_is_there_again() -> None:
    pool = BlockPool(20)
    pins = Pins(pool)
    assert pins.pin(keys("a", 3), 10.0, "a") and pins.pin(keys("b", 2), 5.0, "b")
    pins.expire(4.9)
    assert len(pool.pinned) == 5
    pins.expire(5.0)
    assert pins.by_tenant() == {"a": 3} and len(pool.pinned) == 3
    assert pins.pin(keys("a", 1), 30.0, "a")  # one of them lasts longer now
    pins.expire(29.9)
    assert pool.pinned == {keys("a", 1)[0]: 30.0}
    pool.clear()
    pins.clear()
    pins.expire(100.0)
    assert pins.pin(keys("c", 5), 200.0, "c")
