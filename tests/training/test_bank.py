"""Protects: what the bank holds out is the same everywhere, and never trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.bank import BankError, load_bank, phrasing_key, split_phrasings

ITEM = """
[[item]]
id = "kv-cache"
questions = [{questions}]
{wide}
answer = "The KV cache keeps keys and values. It grows with the context."
"""


EIGHT = ", ".join(f'"What is cache {i}?"' for i in range(8))


def write_bank(folder: Path, questions: str = EIGHT, wide: str = "") -> Path:
    (folder / "serving.toml").write_text(ITEM.format(questions=questions, wide=wide))
    return folder


def test_two_of_the_questions_and_one_of_the_wide_phrasings_are_held_out(tmp_path: Path) -> None:
    wide = (
        'wide = ["caching, how come", "the thing that stores attention state", "what is CACHE 3"]'
    )
    bank = load_bank(write_bank(tmp_path, wide=wide))
    (item,) = bank.items
    assert (len(item.held_out), len(item.held_out_wide)) == (2, 1)
    assert len(item.questions) == 8 + 2 - 3  # The third wide phrasing is a question already.
    trained = {phrasing_key(q) for q in item.questions}
    assert bank.held_out_keys == {phrasing_key(q) for q in (*item.held_out, *item.held_out_wide)}
    assert not bank.held_out_keys & trained
    assert sorted(item.phrasings) == sorted({*item.questions, *item.held_out, *item.held_out_wide})


def test_the_split_depends_on_the_phrasings_alone() -> None:
    """A new phrasing moves no held-out one into training, and cannot aim for a side."""
    phrasings = [f"how large is batch {i}" for i in range(20)]
    train, held = split_phrasings(phrasings, 2)
    again, same = split_phrasings(phrasings[::-1], 2)
    assert set(held) == set(same)
    assert set(train) == set(again)
    more, _ = split_phrasings([*phrasings, "something else"], 2)
    assert set(more) >= set(train) - {"something else"}


def test_wide_phrasings_do_not_move_the_split_of_the_questions(tmp_path: Path) -> None:
    """They came later: the measured quality has to stay that of the same phrasings."""
    before = load_bank(write_bank(tmp_path)).items[0].held_out
    after = load_bank(write_bank(tmp_path, wide='wide = ["a", "b", "c", "d"]')).items[0].held_out
    assert before == after


@pytest.mark.parametrize(
    ("questions", "wide", "message"),
    [
        ('"one?", "One"', "", "distinct phrasings"),
        (EIGHT, "wide = 3", "wide must be a list"),
        (EIGHT, "rare = []", "unknown keys"),
        (EIGHT, "more = 3", "more must be text"),
    ],
)
def test_a_broken_item_is_named(tmp_path: Path, questions: str, wide: str, message: str) -> None:
    with pytest.raises(BankError, match=message) as raised:
        load_bank(write_bank(tmp_path, questions, wide))
    assert "kv-cache" in str(raised.value)


SHARED = """
[answers]
live = "I have no internet."

[[item]]
id = "weather"
questions = ["weather", "rain today", "is it cold", "snow tomorrow"]
shared = "{shared}"
{answer}
"""


def test_items_may_share_an_answer(tmp_path: Path) -> None:
    (tmp_path / "declines.toml").write_text(SHARED.format(shared="live", answer=""))
    assert load_bank(tmp_path).items[0].answer == "I have no internet."


@pytest.mark.parametrize(("shared", "answer"), [("gone", ""), ("live", 'answer = "Two of them."')])
def test_a_shared_answer_has_to_be_there_and_the_only_one(
    tmp_path: Path, shared: str, answer: str
) -> None:
    (tmp_path / "declines.toml").write_text(SHARED.format(shared=shared, answer=answer))
    with pytest.raises(BankError, match=r"weather.*shared must name one"):
        load_bank(tmp_path)
