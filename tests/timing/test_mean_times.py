"""Protects: means by size stay within what was measured; one held-up measurement counts little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twostroke.timing.mean_times import MeanTimes, rounded_size


@given(st.lists(st.tuples(st.integers(1, 300), st.floats(1e-4, 1.0)), min_size=1))
def test_times_lie_between_those_measured(steps: list[tuple[int, float]]) -> None:
    times = MeanTimes()
    for size, seconds in steps:
        times.add(size, seconds)
    low, high = min(s for _, s in steps), max(s for _, s in steps)
    for size in range(1, 400, 7):
        assert low - 1e-9 <= times.at(size) <= high + 1e-9


def test_one_held_up_step_changes_little() -> None:
    times = MeanTimes()
    for seconds in [1.0] * 10 + [100.0]:
        times.add(1, seconds)
    assert times.at(1) < 1.2


def test_sizes_are_told_apart_by_three_bits() -> None:
    sizes = [rounded_size(size) for size in range(1, 34)]
    assert sizes[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert sizes[-3:] == [32, 32, 40]
    assert all(size <= rounded for size, rounded in enumerate(sizes, 1))
