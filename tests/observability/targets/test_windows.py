"""The windows of targets against plain lists: the same counts, whatever happens when."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.observability.targets.windows import (
    MICROSECONDS,
    NUM_SLOTS,
    WINDOW_SECONDS,
    HeldValue,
    SlidingWindows,
)

# Bursts, pauses, and pauses longer than every window.
GAPS = st.one_of(st.integers(0, 3), st.integers(0, 400), st.integers(3000, 9000))


def naive_window(events: list[tuple[int, int, int]], now: int, seconds: int) -> dict[int, int]:
    """Counts of (second, key, count) in the slots that a window ending at ``now`` covers."""
    slot = seconds // NUM_SLOTS
    totals: Counter[int] = Counter()
    for second, key, count in events:
        if now // slot - NUM_SLOTS < second // slot <= now // slot:
            totals[key] += count
    return dict(totals)


@given(st.lists(st.tuples(GAPS, st.integers(-3, 3), st.integers(1, 9), st.booleans())))
@settings(max_examples=200)
def test_counts_are_those_of_a_list(steps: list[tuple[int, int, int, bool]]) -> None:
    windows, events, now = SlidingWindows(), list[tuple[int, int, int]](), 0
    for gap, key, count, looks in steps:
        now += gap
        windows.add(now, key, count)
        events.append((now, key, count))
        if looks:
            check(windows, events, now)
    for later in (now, now + 59, now + 3601):
        check(windows, events, later)


def check(windows: SlidingWindows, events: list[tuple[int, int, int]], now: int) -> None:
    windows.advance(now)
    for window in windows.windows:
        assert window.totals == naive_window(events, now, window.seconds)


@given(st.lists(st.tuples(st.integers(0, 150_000_000), st.integers(0, 3)), max_size=12))
@settings(max_examples=100, deadline=None)
def test_a_state_counts_by_the_time_that_it_lasts(changes: list[tuple[int, int]]) -> None:
    windows, now, latest = SlidingWindows(), 0, -1
    state = HeldValue(windows)
    events: list[tuple[int, int, int]] = []
    for gap, key in [*changes, (1, 0)]:
        if latest >= 0:
            for second in range(now // MICROSECONDS, (now + gap) // MICROSECONDS + 1):
                begin = max(now, second * MICROSECONDS)
                end = min(now + gap, (second + 1) * MICROSECONDS)
                events.append((second, latest, max(0, end - begin)))
        now += gap
        state.set(now, key)
        latest = key
    windows.advance(now // MICROSECONDS)
    for window in windows.windows:
        naive = naive_window(events, now // MICROSECONDS, window.seconds)
        assert window.totals == {key: count for key, count in naive.items() if count}


def test_a_state_that_lasted_longer_than_every_window() -> None:
    windows = SlidingWindows()
    state = HeldValue(windows)
    state.set(0, 7)
    assert state.hold(10**6 * MICROSECONDS) == (10**6 * MICROSECONDS, 7)
    windows.advance(10**6)
    for window in windows.windows:
        assert list(window.totals) == [7]
        assert 0 <= window.seconds - window.totals[7] / MICROSECONDS <= window.seconds / NUM_SLOTS


def test_memory_is_bounded() -> None:
    """A day of a thousand levels each second holds no more than 60 slots of each window."""
    windows = SlidingWindows()
    for second in range(0, 86_400, 7):
        for key in range(20):
            windows.add(second, key)
    windows.advance(86_400)
    assert [len(window._slots) <= NUM_SLOTS for window in windows.windows] == [True] * 3
    assert [window.seconds for window in windows.windows] == list(WINDOW_SECONDS)
