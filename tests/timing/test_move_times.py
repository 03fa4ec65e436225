"""Protects: prompts go apart from where computing takes longer than moving; chance moves little."""

from __future__ import annotations

from random import Random

import pytest

from twostroke.timing.move_times import FIRST, LEAST, MIN_MEASURED, MOST, MoveTimes


def measured(rate: float, fixed: float, each: float, count: int = 32, noise: float = 0.0) -> int:
    """After prompts of ``rate`` seconds a token and moves of ``fixed + each * tokens``."""
    random, times = Random(0), MoveTimes()
    for _ in range(count):
        size = random.randrange(100, 8000)
        factor = 1 + noise * random.random()
        times.observe_prompt(size, rate * size * factor)
        times.observe_move(size, (fixed + each * size) * factor)
    return times.least_tokens


def test_before_anything_is_measured_a_fixed_length_holds() -> None:
    assert MoveTimes().least_tokens == FIRST
    assert measured(1e-3, 0.5, 1e-4, MIN_MEASURED - 1) == FIRST
    assert measured(1e-3, 0.5, 1e-4, MIN_MEASURED) != FIRST


@pytest.mark.parametrize(
    ("rate", "fixed", "each", "least"),
    [
        (1e-3, 0.45, 1e-4, 500),
        (1e-4, 0.05, 0.0, 500),
        (1e-3, 0.001, 1e-5, LEAST),  # moving costs next to nothing
        (1e-4, 0.01, 2e-4, MOST),  # a slow link: it never pays
        (1e-5, 1.0, 0.0, MOST),
    ],
)
def test_the_length_is_where_both_take_as_long(
    rate: float, fixed: float, each: float, least: int
) -> None:
    assert measured(rate, fixed, each) == pytest.approx(least, rel=0.01)
    assert measured(rate, fixed, each, noise=0.3) == pytest.approx(least, rel=0.5)


def test_what_was_held_up_once_changes_little() -> None:
    times = MoveTimes()
    for size in range(100, 3100, 100):
        times.observe_prompt(size, 1e-3 * size)
        times.observe_move(size, 0.45 + 1e-4 * size)
    before = times.least_tokens
    times.observe_move(1000, 60.0)
    times.observe_prompt(1000, 60.0)
    assert times.least_tokens == pytest.approx(before, rel=0.1)
    assert times.num_moves == 31 and times.move_seconds > 60


def test_prompts_of_one_length_tell_the_fixed_part() -> None:
    times = MoveTimes()
    for _ in range(10):
        times.observe_prompt(1000, 1.0)
        times.observe_move(1000, 0.3)
    assert times.least_tokens == 300


def test_what_was_mostly_cached_says_nothing_of_a_token() -> None:
    times = MoveTimes()
    for _ in range(10):
        times.observe_prompt(1, 0.5)
        times.observe_move(1000, 0.3)
    assert times.least_tokens == FIRST
