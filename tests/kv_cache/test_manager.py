"""Block tables alone: sharing, copy-on-write, eviction order, and content keys."""

from __future__ import annotations

import pytest

from tests.specs import resolved
from twostroke.core.request import Request, RequestStatus
from twostroke.kv_cache.block_hash import extend_block_hashes, root_hash
from twostroke.kv_cache.block_table import UNCHANGED, TableChange
from twostroke.kv_cache.manager import KVCacheManager

BLOCK = 4


def make_request(
    request_id: str, num_tokens: int, *, first: int = 0, leader: Request | None = None
) -> Request:
    return Request(resolved(request_id, range(first, first + num_tokens)), leader=leader)


def compute(kv: KVCacheManager, request: Request) -> None:
    """Admit a request, give it all blocks it needs, and take all its tokens as computed."""
    kv.admit(request, kv.find_prefix(request))
    request.status = RequestStatus.RUNNING
    assert kv.allocate_slots(request, request.num_missing_tokens) is not None
    request.num_computed_tokens = request.num_tokens
    kv.commit(request)
    kv.check_integrity()


def test_the_leader_too_copies_a_shared_block_before_it_writes() -> None:
    """The first to write into a shared block gets a copy, and the change is sent."""
    kv = KVCacheManager(10, BLOCK)
    leader = make_request("s#0", 6)
    compute(kv, leader)
    follower = make_request("s#1", 6, leader=leader)
    kv.admit(follower, kv.find_prefix(follower))
    assert kv.block_ids(follower) == kv.block_ids(leader)
    shared = kv.block_ids(leader)[1]
    leader.token_ids.append(9)
    change = kv.allocate_slots(leader, 1)
    kv.check_integrity()
    own = kv.block_ids(leader)[1]
    assert change == TableChange(1, [own], [(shared, own)])
    assert kv.block_ids(follower)[1] == shared
    change = kv.allocate_slots(follower, 1)
    assert change is not None and not change.block_copies, "the last holder writes in place"
    assert change.new_block_ids == kv.block_ids(follower)


def test_a_prefix_is_never_the_whole_prompt() -> None:
    """The last token's logits are needed, so at least one token is computed."""
    kv = KVCacheManager(10, BLOCK)
    compute(kv, make_request("a", 8))
    assert kv.find_prefix(make_request("b", 8)).num_tokens == 4
    assert kv.find_prefix(make_request("c", 9)).num_tokens == 8


def test_tails_are_evicted_before_beginnings_and_old_before_new() -> None:
    kv = KVCacheManager(4, BLOCK)
    old, new = make_request("old", 8), make_request("new", 8, first=50)
    for request in (old, new):
        compute(kv, request)
        kv.free(request)
    compute(kv, make_request("other", 4, first=80))
    kept = [
        kv.find_prefix(make_request(f"{first}", 9, first=first)).num_tokens for first in (0, 50)
    ]
    assert kept == [4, 8]


def test_a_hit_revives_free_blocks_and_counts_them_as_taken() -> None:
    """Free blocks that a prefix revives are no longer free for the rest of the request."""
    kv = KVCacheManager(4, BLOCK)
    first = make_request("a", 12)
    compute(kv, first)
    kv.free(first)
    request = make_request("b", 16)
    prefix = kv.find_prefix(request)
    assert prefix.num_tokens == 12
    assert kv.has_room(request, prefix, reserved=0)
    assert not kv.has_room(request, prefix, reserved=1)


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = KVCacheManager(8, BLOCK, enable_prefix_caching=False)
    request = make_request("a", 9)
    compute(kv, request)
    kv.free(request)
    assert kv.find_prefix(make_request("b", 9)).num_tokens == 0
    assert kv.pool.num_cached == 0


def test_discarded_content_is_not_found_again() -> None:
    kv = KVCacheManager(8, BLOCK)
    request = make_request("a", 9)
    compute(kv, request)
    kv.free(request, discard=True)
    assert kv.find_prefix(make_request("b", 9)).num_tokens == 0


def test_what_others_hold_stays_when_one_of_them_fails() -> None:
    kv = KVCacheManager(8, BLOCK)
    first, second = make_request("a", 9), make_request("b", 9)
    compute(kv, first)
    compute(kv, second)
    kv.free(second, discard=True)
    assert kv.find_prefix(make_request("c", 9)).blocks == kv.block_ids(first)[:2]


def test_what_failed_takes_nothing_from_an_equal_one_that_ended() -> None:
    """Two compute the same in one step: what is found is the first one's, whatever becomes of the
    other.
    """
    kv = KVCacheManager(8, BLOCK)
    first, second = make_request("a", 9), make_request("b", 9)
    for request in (first, second):
        kv.admit(request, kv.find_prefix(request))
        kv.allocate_slots(request, 9)
    blocks = kv.block_ids(first)
    for request in (first, second):
        request.num_computed_tokens = 9
        kv.commit(request)
    kv.free(first)
    kv.free(second, discard=True)
    kv.check_integrity()
    assert kv.find_prefix(make_request("c", 9)).blocks == blocks[:2]
    assert kv.pool.num_free == 8


@pytest.mark.parametrize(
    "one, other",
    [
        (("m", ""), ("n", "")),
        (("m", "a"), ("m", "b")),
        (("m", "n"), ("mn", "")),
    ],
)
def test_content_keys_differ_between_models_and_salts(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    """Even where they spell the same string together."""
    assert root_hash(*one) != root_hash(*other)


def test_content_keys_stay_those_of_folders_on_disk() -> None:
    """A folder of blocks (``--kv-disk``) is found again by what was written before."""
    assert root_hash("m", "a").hex() == "d0491db127cce574443e0188e334b885"


def test_only_what_is_new_in_a_table_is_sent() -> None:
    """Slots in blocks that the executor knows cost nothing; a new block is sent alone."""
    kv = KVCacheManager(10, BLOCK)
    request = make_request("a", 6)
    kv.admit(request, kv.find_prefix(request))
    assert kv.allocate_slots(request, 6) == TableChange(0, kv.block_ids(request), [])
    request.num_computed_tokens = 6
    assert kv.allocate_slots(request, 1) is kv.allocate_slots(request, 2) is UNCHANGED
    assert kv.allocate_slots(request, 3) == TableChange(2, kv.block_ids(request)[2:], [])


def test_a_shortage_of_blocks_changes_nothing() -> None:
    """A new block, or a copy of a shared one: without a free block there is neither."""
    kv = KVCacheManager(2, BLOCK)
    leader = make_request("s#0", 6)
    compute(kv, leader)
    assert kv.allocate_slots(leader, 3) is None
    follower = make_request("s#1", 6, leader=leader)
    kv.admit(follower, kv.find_prefix(follower))
    before = [list(kv.block_ids(request)) for request in (leader, follower)]
    assert kv.allocate_slots(leader, 1) is None
    assert [kv.block_ids(request) for request in (leader, follower)] == before
    kv.check_integrity()


def test_only_full_blocks_are_hashed() -> None:
    """A block enters the index when all its tokens are computed, and then for good."""
    request = make_request("a", 6)
    with pytest.raises(AssertionError, match="full"):
        extend_block_hashes(request, 2, BLOCK, "")
