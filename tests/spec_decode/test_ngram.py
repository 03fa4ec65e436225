"""Protects: n-gram drafts are what followed the same tokens before, in text or prediction."""

from __future__ import annotations

import numpy as np
import pytest

from tests.spec_decode.passes import Conversation
from twostroke.spec_decode.ngram import NgramProposer, copy_on


def test_what_followed_before_is_proposed_again() -> None:
    talk = Conversation(NgramProposer())
    talk.add("a", [1, 2, 3, 4, 5, 6, 9, 1])
    assert talk.draw("a", [2], most=3) == [3, 4, 5]
    assert talk.draw("a", [3, 4], most=2) == [5, 6]
    assert talk.draw("a", [7], most=2) == [], "4 7 has not been there"
    assert talk.draw("a", [1, 2], most=3) == [3, 4, 7], "the latest place counts"


def test_the_longest_match_wins_over_a_later_one() -> None:
    talk = Conversation(NgramProposer(min_match=1))
    talk.add("a", [5, 1, 2, 8, 9, 1, 2, 7, 5, 1])
    assert talk.draw("a", [2], most=1) == [8]


@pytest.mark.parametrize(("min_match", "expected"), [(1, [3]), (2, []), (3, [])])
def test_short_matches_are_left_out(min_match: int, expected: list[int]) -> None:
    talk = Conversation(NgramProposer(min_match))
    talk.add("a", [4, 2, 3])
    assert talk.draw("a", [2], most=1) == expected


def test_a_copy_that_reaches_the_end_goes_on_with_itself() -> None:
    tokens = np.array([1, 2, 3, 1, 2, 3], np.int32)
    assert copy_on(tokens, 2, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_a_prediction_is_quoted_up_to_its_end() -> None:
    talk = Conversation(NgramProposer())
    talk.add("a", [1, 2], prediction=[10, 11, 12, 13])
    assert talk.draw("a", [10, 11], most=8) == [12, 13]
    talk.add("b", [1, 2])
    assert talk.draw("b", [10, 11], most=8) == [], "it belongs to one request"


def test_a_request_that_begins_anew_keeps_nothing_of_before() -> None:
    talk = Conversation(NgramProposer())
    talk.add("a", [1, 2, 3, 1])
    assert talk.draw("a", [2]) != []
    talk.end("a")
    talk.add("a", [7, 8, 9])
    assert talk.draw("a", [1, 2]) == []
