"""Stop strings against the naive search, for any way of cutting the text."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.text.stop_strings import StopChecker, StopStrings


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """End and string of the match that is complete first; the longest of those that end there."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    return (min(ends)[0], min(ends)[2]) if ends else None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces, at = [], 0
    for size in [*sizes, len(text)]:
        pieces.append(text[at : at + size])
        at += size
    return pieces


# Two letters and short strings, so that stops overlap each other and themselves.
words = st.text(alphabet="ab", min_size=1, max_size=5)
sizes = st.lists(st.integers(0, 4), max_size=20)


@settings(max_examples=500, deadline=None)
@given(
    text=st.text(alphabet="abc", max_size=40),
    stops=st.lists(words, max_size=4),
    sizes=sizes,
    keep=st.booleans(),
)
def test_stream_equals_text_cut_at_first_stop(
    text: str, stops: list[str], sizes: list[int], keep: bool
) -> None:
    expected = first_stop(text, stops)
    checker, shown = StopChecker(StopStrings(stops, keep)), ""
    for piece in cut(text, sizes):
        emit, matched = checker.push(piece)
        shown += emit
        assert text.startswith(shown)
        assert keep or not any(s in shown for s in stops)
        assert checker.matched == matched
    if expected is None:
        assert checker.matched is None
        assert shown + checker.flush() == text
    else:
        end, stop = expected
        assert checker.matched == stop
        assert shown == text[: end if keep else end - len(stop)]
        assert checker.flush() == ""


@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="ab", max_size=12), min_size=2, max_size=4),
    stops=st.lists(words, min_size=1, max_size=3),
    armed=st.booleans(),
)
def test_samples_that_share_their_strings_do_not_notice(
    texts: list[str], stops: list[str], armed: bool
) -> None:
    """Character by character in turn, so that each finds tables that another has grown."""
    shared = StopStrings(stops)
    checkers = [StopChecker(shared) for _ in texts]
    alone = [StopChecker(StopStrings(stops)) for _ in texts]
    for i in range(max(map(len, texts))):
        for checker, single, text in zip(checkers, alone, texts, strict=True):
            assert checker.push(text[i : i + 1], armed) == single.push(text[i : i + 1], armed)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab", max_size=20), stops=st.lists(words, min_size=1, max_size=3))
def test_as_little_as_possible_is_held_back(text: str, stops: list[str]) -> None:
    checker = StopChecker(StopStrings(stops))
    shown, matched = checker.push(text)
    if matched is None:
        starts = {s[:n] for s in stops for n in range(len(s))}
        longest = max(n for n in range(len(text) + 1) if text[len(text) - n :] in starts)
        assert len(text) - len(shown) == longest


def test_examples() -> None:
    checker = StopChecker(StopStrings(["</s>", "\n\n"]))
    assert checker.push("one\n") == ("one", None)
    assert checker.push("two <") == ("\ntwo ", None)
    assert checker.push("/s>three") == ("", "</s>")
    assert checker.push("more") == ("", "</s>")
    kept = StopChecker(StopStrings(["END"], include_stop=True))
    assert kept.push("aEN") == ("aEN", None)
    assert kept.push("Dxyz") == ("D", "END")


def test_of_stops_that_end_together_the_longest_wins() -> None:
    assert StopChecker(StopStrings(["b", "ab"])).push("xab") == ("x", "ab")


def test_disarmed_text_passes_but_may_begin_a_stop() -> None:
    checker = StopChecker(StopStrings(["ab"]))
    assert checker.push("abab a", armed=False) == ("abab ", None)
    assert checker.push("b!") == ("", "ab")


def test_no_stops_pass_everything() -> None:
    checker = StopChecker(StopStrings([]))
    assert checker.push("text") == ("text", None)
    assert checker.flush() == ""


def test_hostile_stops_cost_linear_time() -> None:
    checker = StopChecker(StopStrings(["a" * 1000 + chr(0x100 + i) for i in range(16)]))
    started = time.process_time()
    shown = "".join(checker.push("aaaa")[0] for _ in range(2000))
    assert len(shown) == 8000 - 1000
    # 8,000 characters, 16 automata: 0.1 s; naive slices would take minutes.
    assert time.process_time() - started < 2
