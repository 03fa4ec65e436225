"""Protects: the fast search finds what a slow one does, and arrays keep to their limit."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from twostroke.spec_decode.texts import MAX_PLACES, SEPARATOR, GrowingTokens, find_end

TEXTS = st.lists(st.integers(-1, 3), max_size=40)


def find_slowly(tokens: list[int], end: list[int], min_length: int) -> tuple[list[int], int] | None:
    best: tuple[list[int], int] = ([], 0)
    for length in range(1, len(end) + 1):
        places = [
            place
            for place in range(length - 1, len(tokens))
            if tokens[place - length + 1 : place + 1] == end[-length:]
        ]
        if places:
            best = places, length
    return best if best[1] >= min_length else None


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 3))
def test_the_longest_match_is_found_wherever_it_is(
    tokens: list[int], end: list[int], min_length: int
) -> None:
    found = find_end(np.array(tokens, np.int32), np.array(end, np.int32), min_length)
    expected = find_slowly(tokens, end, min_length)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.ends.tolist(), found.length) == expected


def test_of_very_many_places_the_latest_are_looked_at() -> None:
    found = find_end(np.full(5000, 7, np.int32), np.array([7, 7, 7], np.int32), 2)
    assert found is not None
    assert found.ends.tolist() == list(range(5000 - MAX_PLACES, 5000))


@given(st.lists(st.lists(st.integers(0, 9), max_size=700), max_size=6), st.none() | st.just(500))
def test_a_text_grows_and_forgets_its_oldest_tokens(
    parts: list[list[int]], limit: int | None
) -> None:
    tokens, every = GrowingTokens(limit), list[int]()
    for part in parts:
        tokens.append(part)
        every += part
        assert tokens.tokens.tolist() == (every if limit is None else every[-limit:])
        assert len(tokens) == len(tokens.tokens)


@given(st.lists(st.lists(st.integers(0, 400), max_size=90), max_size=12), st.none() | st.just(200))
def test_no_match_is_ruled_out_that_is_there(parts: list[list[int]], limit: int | None) -> None:
    """The marks may hide no match, however the text came and whatever of it was dropped."""
    text = GrowingTokens(limit)
    for part in parts:
        text.append(part)
        tokens = text.tokens.tolist()[:-1]
        for before, last in zip([SEPARATOR, *tokens], tokens):
            assert text.may_hold(before, last, 1)
            assert before == SEPARATOR or text.may_hold(before, last, 2)


def test_most_searches_of_random_text_are_spared() -> None:
    random = Random(0)
    text, spared = GrowingTokens(2000), 0
    for _ in range(5000):
        text.append([random.randrange(4096)])
        before, last = text.tokens[-2:].tolist() if len(text) > 1 else (SEPARATOR, 5000)
        spared += not text.may_hold(before, last, 2)
    assert spared > 3000
