"""Protects: a replica that has just come gets a growing share, and in the end a full one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.routing.slow_start import LEAST_SHARE, SlowStart, ramped_share

TIMES = st.floats(0, 1e6)


def test_a_share_grows_in_equal_steps() -> None:
    shares = [ramped_share(age, 9.0) for age in (0.0, 3.0, 6.0, 9.0)]
    assert shares == pytest.approx([0.1, 0.4, 0.7, 1.0])


def test_one_that_was_always_there_has_a_full_share() -> None:
    starting = SlowStart[str](10.0)
    starting.note_start("new", 100.0)
    assert starting.share("old", 100.0) == 1.0
    assert starting.share("new", 100.0) == LEAST_SHARE


def test_one_that_comes_back_begins_anew() -> None:
    starting = SlowStart[str](10.0)
    starting.note_start("a", 0.0)
    assert starting.share("a", 20.0) == 1.0
    starting.note_start("a", 30.0)
    assert starting.share("a", 30.0) == LEAST_SHARE
    starting.forget("a")
    assert starting.share("a", 30.0) == 1.0


def test_without_a_ramp_there_is_none() -> None:
    starting = SlowStart[str](0.0)
    starting.note_start("a", 5.0)
    assert starting.share("a", 5.0) == 1.0


@given(TIMES, TIMES, st.floats(0.001, 1e5))
def test_shares_are_never_nothing_and_never_shrink(age: float, later: float, ramp: float) -> None:
    share = ramped_share(age, ramp)
    assert LEAST_SHARE <= share <= 1.0
    assert ramped_share(age + later, ramp) >= share
