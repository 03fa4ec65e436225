"""What was removed from a prompt comes back where it still fits."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.text.contexts import chat, docs, kept_turns, put_together, size


@pytest.mark.parametrize("strategy", ["drop_oldest", "drop_middle"])
def test_a_document_that_can_never_fit_takes_no_turn_with_it(strategy: str) -> None:
    """Turns go before documents; but those that made no room are not given up for nothing."""
    documents = docs("fox " * 400, "dog " * 400, scores=(2.0, 1.0))
    assembly = put_together(chat(6), documents, hard_limit=size(chat(6)) + 40, strategy=strategy)
    assert kept_turns(assembly, 6) == list(range(6))
    assert assembly.report.kept_document_tokens == 0


def test_a_small_document_stays_where_a_better_one_is_too_long() -> None:
    documents = docs("fox " * 400, "dog " * 9, scores=(2.0, 1.0))
    for strategy in ("drop_oldest", "drop_documents"):
        assembly = put_together(
            chat(0), documents, hard_limit=size(chat(0)) + 100, strategy=strategy
        )
        assert [bool(use.kept_tokens) for use in assembly.report.documents] == [False, True]


def test_history_gets_no_holes() -> None:
    """A turn older than one that does not fit stays out, small as it may be."""
    messages = chat(4)
    messages[3]["content"] += " long" * 60  # turn 1
    hard_limit = size([*messages[:1], *messages[5:]]) + size(chat(1)) - size(chat(0))
    assert kept_turns(put_together(messages, hard_limit=hard_limit, strategy="drop_oldest"), 4) == [
        2,
        3,
    ]


def test_a_document_is_cut_into_what_turns_have_left() -> None:
    """Also where the last piece to go was a turn."""
    messages = chat(2)
    messages[1]["content"] += " long" * 200
    assembly = put_together(
        messages,
        docs("fox " * 300, scores=(1.0,)),
        hard_limit=size(chat(2)) + 50,
        strategy="truncate_documents",
    )
    assert assembly.report.kept_turns == 1
    assert assembly.report.kept_document_tokens > 16 and assembly.report.cut_document_tokens > 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), max_size=6),
    st.lists(st.integers(1, 200), max_size=4),
    st.integers(0, 300),
)
def test_no_document_is_left_out_that_would_fit(
    lengths: list[int], texts: list[int], extra: int
) -> None:
    messages = [*chat(0)[:1]]
    for i, length in enumerate(lengths):
        messages += [{"role": "user", "content": f"question{i}" + " fox" * length}]
        messages += [{"role": "assistant", "content": f"answer{i}"}]
    messages.append(chat(0)[-1])
    documents = docs(
        *("dog " * length for length in texts), scores=tuple(map(float, range(1, len(texts) + 1)))
    )
    hard_limit = size(chat(0)) + extra
    report = put_together(messages, documents, hard_limit=hard_limit).report
    assert report.prompt_tokens <= hard_limit
    room = hard_limit - report.prompt_tokens
    # Headings and separators are no part of a document's own tokens.
    assert all(use.kept_tokens or use.tokens + 40 > room for use in report.documents)
