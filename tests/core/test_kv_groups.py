"""Protects: what admission, banner and planner promise is what tables need, counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.kv_groups import KVGroups, group_of, keys_of_groups

WINDOWS = st.sampled_from([(None,), (1,), (7,), (None, 4), (None, None, 9), (3, 16)])


def held(windows: tuple[int | None, ...], start: int, end: int, size: int) -> int:
    """Blocks that a request holds while tokens ``start`` to ``end`` are computed, by definition."""
    count = 0
    for window in windows:
        for block in range(-(-end // size)):
            resumed = start // size * size  # a request may go on from its last full block
            count += window is None or (block + 1) * size > resumed - window + 1
    return count


@given(WINDOWS, st.integers(1, 90), st.integers(1, 20), st.integers(1, 5))
def test_no_chunking_needs_more_than_is_promised(
    windows: tuple[int | None, ...], tokens: int, chunk: int, size: int
) -> None:
    groups = KVGroups(windows, chunk)
    steps = [(start, min(start + chunk, tokens)) for start in range(tokens)]
    most = max(held(windows, start, end, size) for start, end in steps)
    assert most <= groups.most_blocks(tokens, size) <= most + 2 * len(windows)


@given(WINDOWS, st.integers(0, 60), st.integers(1, 20), st.integers(1, 5))
def test_the_longest_request_is_the_last_that_fits(
    windows: tuple[int | None, ...], num_blocks: int, chunk: int, size: int
) -> None:
    groups = KVGroups(windows, chunk)
    longest = groups.longest_request(num_blocks, size)
    if longest is None:
        assert None not in windows and groups.most_blocks(10**9, size) <= num_blocks
    else:
        assert longest == 0 or groups.most_blocks(longest, size) <= num_blocks
        assert groups.most_blocks(longest + size, size) > num_blocks


def test_a_chunks_room_counts_once_for_all_requests() -> None:
    """1,024 tokens of window take 64 + 1 blocks; a chunk of 2,048 takes 128 more, now and then."""
    groups = KVGroups((1024,), 2048)
    most, alone = groups.most_blocks(32768, 16), 65
    assert most == 64 + 129
    assert groups.num_requests(most - 1, 32768, 16) == 0
    assert groups.num_requests(most, 32768, 16) == 1
    assert groups.num_requests(most + 9 * alone, 32768, 16) == 10
    assert KVGroups().num_requests(100, 160, 16) == 10


def test_keys_tell_their_group() -> None:
    for key in (b"0123456789abcdef", 7, -3):
        keys = keys_of_groups(key, 3)
        assert len(set(keys)) == 3 and [group_of(each, 3) for each in keys] == [0, 1, 2]
        assert keys_of_groups(key, 1) == [key] and group_of(key, 1) == 0
