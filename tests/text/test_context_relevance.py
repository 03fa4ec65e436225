"""Documents that share nothing with the question give way to everything else."""

from __future__ import annotations

import pytest

from tests.text.contexts import DROPPING, chat, docs, kept_turns, put_together, size
from twostroke.text.context import Assembly


def kept_documents(assembly: Assembly) -> list[str | None]:
    return [use.id for use in assembly.report.documents if use.kept_tokens]


@pytest.mark.parametrize("strategy", DROPPING)
def test_history_stays_where_documents_without_relevance_suffice(strategy: str) -> None:
    documents = docs("Bread is baked. " * 10, "Salt is what the sea has. " * 10)
    messages = chat(4)
    assembly = put_together(messages, documents, hard_limit=size(messages) + 5, strategy=strategy)
    assert kept_turns(assembly, 4) == [0, 1, 2, 3]
    assert kept_documents(assembly) == []
    assert [use.score for use in assembly.report.documents] == [0, 0]


@pytest.mark.parametrize("strategy", DROPPING)
@pytest.mark.parametrize("scores", [None, (2.0, 0.0)])
def test_what_does_not_matter_never_takes_the_place_of_what_does(
    strategy: str, scores: tuple[float, float] | None
) -> None:
    """A small document without relevance would fit where the long one had to go."""
    documents = docs("This is the last question. " * 80, "Bread is baked.", scores=scores)
    room = size(chat(0)) + 40
    assembly = put_together(chat(0), documents, hard_limit=room, strategy=strategy)
    assert kept_documents(assembly) == (["d0"] if strategy == "truncate_documents" else [])


@pytest.mark.parametrize("strategy", DROPPING)
def test_of_documents_without_relevance_as_many_stay_as_fit(strategy: str) -> None:
    documents = docs("the last question", "Bread is baked.", "Salt is mined.", "Tea is grown.")
    messages = chat(2)
    room = size(messages, documents) - 1
    assembly = put_together(messages, documents, hard_limit=room, strategy=strategy)
    assert kept_turns(assembly, 2) == [0, 1]
    assert kept_documents(assembly) == ["d0", "d1", "d2"]


def test_a_score_of_zero_is_a_score_like_others_where_some_are_negative() -> None:
    """Rerankers often give logits."""
    documents = docs("Bread is baked. " * 10, "Salt is mined. " * 10, scores=(0.0, -3.0))
    room = size(chat(2)[-1:], documents[:1]) + 12
    assembly = put_together(chat(2), documents, hard_limit=room, strategy="drop_oldest")
    assert kept_documents(assembly) == ["d0"]


def test_a_question_of_stop_words_ranks_nothing() -> None:
    """A follow-up such as this says nothing of the documents: they are dropped like any others."""
    documents = docs("Bread is baked. " * 10, "Salt is mined.")
    messages = [*chat(2)[:-1], {"role": "user", "content": "Why is that?"}]
    room = size(messages[-1:], documents) + 12
    assembly = put_together(messages, documents, hard_limit=room, strategy="drop_oldest")
    assert kept_documents(assembly) == ["d0", "d1"]
    assert [use.score for use in assembly.report.documents] == [None, None]
