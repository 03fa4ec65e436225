"""Protects: suffix drafts follow the counts of a suffix tree, per group, in bounded memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.spec_decode.passes import Conversation
from twostroke.spec_decode.suffix import MAX_GROUPS, SuffixOptions, SuffixProposer
from twostroke.spec_decode.texts import SEPARATOR

OPTIONS = SuffixOptions(max_match=4, max_factor=2.0, min_probability=0.3)


def guess_slowly(tokens: list[int], end: list[int], most: int) -> tuple[float, list[int]]:
    """SuffixDecoding with a tree in plain dictionaries: counts of everything that was ever there.

    ``tokens`` without what follows nothing; the tree has every substring.
    """
    tree: Counter[tuple[int, ...]] = Counter()
    for first in range(len(tokens)):
        for last in range(first + 1, len(tokens) + 1):
            tree[tuple(tokens[first:last])] += 1
    for length in range(min(len(end), OPTIONS.max_match), 0, -1):
        node = tuple(end[-length:])
        if not any(path[:length] == node for path in tree if len(path) > length):
            continue
        most = min(most, max(1, int(length * OPTIONS.max_factor)))
        drafts, probability, expected = list[int](), 1.0, 0.0
        while len(drafts) < most:
            below = {path: n for path, n in tree.items() if path[:-1] == node}
            if not below:
                break
            best = max(below, key=lambda path: (below[path], -path[-1]))
            probability *= below[best] / sum(below.values())
            if best[-1] == SEPARATOR or probability < OPTIONS.min_probability:
                break
            drafts.append(best[-1])
            expected += probability
            node = best
        return expected, drafts
    return 0.0, []


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=3),
    st.lists(st.integers(0, 2), min_size=1, max_size=10),
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
)
def test_drafts_are_those_of_a_tree(
    answers: list[list[int]], prompt: list[int], drawn: list[int]
) -> None:
    talk = Conversation(SuffixProposer(OPTIONS))
    earlier = list[int]()
    for number, answer in enumerate(answers):
        talk.add(str(number), [9])
        talk.draw(str(number), answer)
        talk.end(str(number))
        earlier += [*answer, SEPARATOR]
    talk.add("a", prompt)
    drafts = talk.draw("a", drawn)
    text = prompt + drawn
    own = guess_slowly(text, text, 8)
    others = guess_slowly(earlier, text, 8)
    assert drafts == max((own, others), key=lambda guess: guess[0])[1]


def test_answers_of_a_tenant_guide_no_other_tenant() -> None:
    talk = Conversation(SuffixProposer())
    talk.add("a", [1], tenant="alice")
    talk.draw("a", [5, 6, 7, 8])
    talk.end("a")
    for name, tenant, salt, expected in (
        ("b", "alice", "", [7, 8]),
        ("c", "bob", "", []),
        ("d", "alice", "secret", []),
    ):
        talk.add(name, [2], tenant=tenant, cache_salt=salt)
        assert talk.draw(name, [5, 6]) == expected


def test_memory_is_bounded() -> None:
    proposer = SuffixProposer(SuffixOptions(max_cached_tokens=100))
    talk = Conversation(proposer)
    for number in range(3 * MAX_GROUPS):
        talk.add("a", [1], tenant=str(number))
        talk.draw("a", list(range(300)))
        talk.end("a")
    assert len(proposer._answers) == MAX_GROUPS
    assert all(len(answers) == 100 for answers in proposer._answers.values())
    assert not proposer._live


def test_answers_keep_their_forced_tokens() -> None:
    """A request gets no drafts where its form leaves no choice; what was forced is its answer."""
    talk = Conversation(SuffixProposer(OPTIONS))
    talk.add("a", [9])
    assert talk.draw("a", [1]) == []
    assert talk.draw("a", [2, 3, 4], forced=True) == []
    assert talk.draw("a", [5]) == []
    talk.end("a")
    talk.add("b", [9])
    assert talk.draw("b", [1, 2]) == [3, 4, 5]
    assert talk.draw("b", [3], forced=True) == []
