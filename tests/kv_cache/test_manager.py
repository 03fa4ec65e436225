"""Block tables alone: sharing, copy-on-write, eviction order, and content keys."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.request import Request, RequestStatus
from twostroke.core.sampling_params import SamplingParams
from twostroke.kv_cache.block_hash import root_hash
from twostroke.kv_cache.manager import KVCacheManager

BLOCK = 4


def make_request(
    request_id: str, num_tokens: int, *, first: int = 0, leader: Request | None = None
) -> Request:
    return Request(
        request_id=request_id,
        token_ids=list(range(first, first + num_tokens)),
        num_prompt_tokens=num_tokens,
        params=SamplingParams(),
        max_total_tokens=100,
        leader=leader,
    )


def compute(kv: KVCacheManager, request: Request) -> None:
    """Admit a request, give it all blocks it needs, and take all its tokens as computed."""
    kv.admit(request, kv.find_prefix(request))
    request.status = RequestStatus.RUNNING
    kv.allocate(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    kv.commit(request)
    kv.check_integrity()


def test_the_leader_too_copies_a_shared_block_before_it_writes() -> None:
    """Whoever writes first into a shared block gets its own copy, and the executor is told where
    the table changed.
    """
    kv = KVCacheManager(10, BLOCK)
    leader = make_request("s#0", 6)
    compute(kv, leader)
    follower = make_request("s#1", 6, leader=leader)
    kv.admit(follower, kv.find_prefix(follower))
    assert kv.block_ids(follower) == kv.block_ids(leader)
    shared = kv.block_ids(leader)[1]
    leader.token_ids.append(9)
    allocation = kv.allocate(leader, 7)
    kv.check_integrity()
    assert allocation.block_copies == [(shared, kv.block_ids(leader)[1])]
    assert allocation.changed_from == 1
    assert kv.block_ids(follower)[1] == shared
    assert kv.allocate(follower, 6).block_copies == [], "the last holder writes in place"


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
        kv.allocate(request, 9)
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
    "one, other", [(("m", ""), ("n", "")), (("m", "a"), ("m", "b")), (("m", "n"), ("mn", ""))]
)
def test_content_keys_differ_between_models_and_salts(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    """Even where model and salt spell the same string together."""
    assert root_hash(*one) != root_hash(*other)


def test_there_is_no_index_until_two_begin_alike() -> None:
    kv = KVCacheManager(10, BLOCK)
    first, other = make_request("a", 9), make_request("b", 9, first=50)
    compute(kv, first)
    compute(kv, other)
    kv.free(first)
    assert not kv.pool.is_indexed and kv.num_cached == len(kv.cached()) == 4
    blocks = list(kv.cached().values())[:2][::-1]  # the last was released first
    assert kv.find_prefix(make_request("c", 9)).blocks == blocks
    assert kv.pool.is_indexed and kv.num_cached == len(kv.cached()) == 4


@pytest.mark.parametrize("count", range(3, 40))
def test_only_the_beginnings_of_what_is_evicted_are_forgotten(count: int) -> None:
    """However many came and went, what is held is found, and what is kept."""
    for sought in (0, count - 3):
        kv = KVCacheManager(8, BLOCK)
        for number in range(count):
            request = make_request(str(number), 5, first=100 * number)
            compute(kv, request)
            if number:
                kv.free(request)
        assert not kv.pool.is_indexed and len(kv._beginnings) <= 2 * kv.pool.num_blocks
        assert kv.find_prefix(make_request("again", 5, first=100 * sought)).num_tokens == BLOCK


@given(st.randoms(use_true_random=False))
def test_without_an_index_all_is_as_with_one(random: Random) -> None:
    """Whenever it is first needed: for a lookup, for equal blocks, or because content is not to be
    trusted.
    """
    late, early = kvs = KVCacheManager(12, BLOCK), KVCacheManager(12, BLOCK)
    early.pool.index({})
    running: list[tuple[Request, Request]] = []
    for turn in range(80):
        if running and (random.random() < 0.5 or late.pool.num_free < 5):
            ended, discard = running.pop(random.randrange(len(running))), random.random() < 0.02
            for kv, request in zip(kvs, ended):
                kv.free(request, discard=discard)
        else:
            first = 100 * (turn if random.random() < 0.97 else random.randrange(turn + 1))
            length = random.randrange(1, 17)
            one, two = (make_request(str(turn), length, first=first) for _ in kvs)
            assert late.find_prefix(one) == early.find_prefix(two)
            compute(late, one)
            compute(early, two)
            assert late.block_ids(one) == early.block_ids(two)
            running.append((one, two))
        assert late.cached() == early.cached() and late.num_cached == early.num_cached
        assert late.pool.free_in_order() == early.pool.free_in_order()
        assert len(late._beginnings) <= 2 * late.pool.num_blocks
