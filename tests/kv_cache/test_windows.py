"""Block tables of groups alone: lookups beside a naive one, events, pins, what failures leave."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kv_cache.test_manager import make_request
from twostroke.core.kv_groups import KVGroups
from twostroke.core.request import BlockKey, Request, RequestStatus
from twostroke.kv_cache.block_table import NO_BLOCK
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.kv_cache.pinned_prefix import pin_prefix
from twostroke.kv_cache.prefix_book import PrefixBook
from twostroke.kv_cache.tier_directory import TierDirectory
from twostroke.kv_cache.tiered_prefix import find_loadable
from twostroke.observability.kv_events import BlockRemoved, BlockStored, KVEventLog

BLOCK = 4


def compute(kv: KVCacheManager, request: Request, chunk: int = 6) -> None:
    """Admit a request and compute all its tokens in chunks."""
    kv.admit(request, kv.find_prefix(request))
    request.status = RequestStatus.RUNNING
    while request.num_missing_tokens:
        num_tokens = min(chunk, request.num_missing_tokens)
        assert kv.allocate_slots(request, num_tokens) is not None
        request.num_computed_tokens += num_tokens
        kv.commit(request)
        kv.check_integrity()


def longest_prefix(
    windows: tuple[int | None, ...], keys: list[BlockKey], there: set[BlockKey]
) -> int:
    """By definition: every length is tried, and every token that the next one sees."""
    count = len(windows)
    for length in range(len(keys) // count, 0, -1):
        seen = [
            keys[position // BLOCK * count + group]
            for group, window in enumerate(windows)
            for position in range(length * BLOCK)
            if window is None or length * BLOCK - position < window
        ]
        if there.issuperset(seen):
            return length
    return 0


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([(2,), (9,), (None, 1), (None, 6), (None, None, 5, 11), (3, 13)]),
    st.data(),
)
def test_the_longest_prefix_is_the_naive_one(
    windows: tuple[int | None, ...], data: st.DataObject
) -> None:
    """Whatever is missing, in the cache or, for loads, in the cache and a tier together."""
    kv = KVCacheManager(200, BLOCK, KVGroups(windows))
    first = make_request("first", 9 * BLOCK + 2)
    compute(kv, first)
    kv.free(first)
    again = make_request("again", 9 * BLOCK + 2)
    assert kv.find_prefix(again).num_tokens == 9 * BLOCK
    keys = again.block_hashes[: 9 * len(windows)]
    lost = data.draw(st.sets(st.sampled_from(keys)))
    in_tier = data.draw(st.sets(st.sampled_from(keys)))
    for key in lost:
        block = kv.pool.find(key)
        assert block is not None
        kv.pool.hold(block)
        kv.pool.unindex(block)
        kv.pool.release(block)
    prefix = kv.find_prefix(again)
    there = set(keys) - lost
    assert prefix.num_tokens == BLOCK * longest_prefix(windows, keys, there)
    to_load, kept, num_tokens, _ = find_loadable(kv, again, prefix, in_tier.__contains__)
    with_loads = BLOCK * longest_prefix(windows, keys, there | in_tier)
    assert prefix.num_tokens + num_tokens == max(prefix.num_tokens, with_loads)
    assert set(to_load) <= in_tier - there and NO_BLOCK not in kept
    if num_tokens:
        reached = there | set(to_load)
        assert longest_prefix(windows, keys, reached) * BLOCK == with_loads


def test_what_was_given_back_of_a_failed_request_is_not_found() -> None:
    kv = KVCacheManager(64, BLOCK, KVGroups((None, 5)))
    request = make_request("bad", 20)
    compute(kv, request)
    assert kv.block_ids(request).count(NO_BLOCK) == 4
    kv.free(request, discard=True)
    kv.check_integrity()
    assert kv.pool.num_cached == 0 and kv.pool.num_free == 64


def test_a_pin_keeps_what_a_hit_needs() -> None:
    """The whole prefix for the group that sees it, two blocks for a window of 6 tokens."""
    kv = KVCacheManager(64, BLOCK, KVGroups((None, 6)))
    tokens = list(range(5 * BLOCK))
    keys = pin_prefix(kv, tokens, "", 10.0)
    assert keys is not None and len(keys) == 5 and len(kv.pool.pinned) == 5 + 2
    assert pin_prefix(kv, list(range(100 * BLOCK)), "", 10.0) is None
    kv.pins.expire(10.0)
    assert not kv.pool.pinned


def test_tree_and_events_show_each_token_once() -> None:
    """Of models with groups, the blocks of the first: one that sees everything."""
    kv = KVCacheManager(8, BLOCK, KVGroups((None, 5)))
    book = PrefixBook(kv.pool, TierDirectory([TierInfo(name="host", num_blocks=4)]), BLOCK, 2)
    log = KVEventLog(BLOCK, "CPU", lambda: 0.0, 2)
    kv.watch(book)
    kv.watch(log)
    request = make_request("a", 3 * BLOCK)
    compute(kv, request, chunk=BLOCK)
    survey = book.begin_survey(None, 0.0).advance(100)
    assert survey is not None
    (prefix,) = survey.tree().prefixes
    assert prefix.tokens == 3 * BLOCK and not prefix.children
    log.flush()
    stored = [event for batch in log.kept.since(-1) for event in batch.events]
    assert [type(event) for event in stored] == [BlockStored] * 3
    hashes = [event.block_hashes[0] for event in stored if isinstance(event, BlockStored)]
    parents = [event.parent_block_hash for event in stored if isinstance(event, BlockStored)]
    assert parents == [None, *hashes[:2]]
    texts = [event.token_ids for event in stored if isinstance(event, BlockStored)]
    assert [token for text in texts for token in text] == request.token_ids
    kv.free(request)
    compute(kv, make_request("b", 4 * BLOCK, first=50), chunk=BLOCK)
    log.flush()
    removed = [
        e for batch in log.kept.since(0) for e in batch.events if isinstance(e, BlockRemoved)
    ]
    assert {each for event in removed for each in event.block_hashes} <= set(hashes)
