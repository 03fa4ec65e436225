"""Protects: an evaluation's report is of the weights that it names; the judge is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.bank import Bank, Item
from training.evaluate import Judge, as_markdown, obeys, weights_digest
from training.suites import Case

ANSWER = "A block holds the keys and values of sixteen tokens."
OTHER = "A block holds the keys and values of sixteen layers."


def case(rule: str = "", word: str = "") -> Case:
    return Case("suite", "block", (), ANSWER, rule=rule, word=word)


def test_one_changed_byte_of_the_weights_is_another_digest_and_the_table_shows_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"abc")
    digest = weights_digest(tmp_path)
    # FIPS 180-4, example "abc".
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"abd")
    assert weights_digest(tmp_path) != digest
    report = {
        "model": "tiny", "weights_sha256": digest, "date": "", "machine": {"cores": 1, "cpu": ""},
        "torch": "", "dtype": "", "commit": None, "items": 0, "training_phrasings": 0,
        "held_out_phrasings": 0, "training": {}, "judge": "", "suites": {},
    }  # fmt: skip
    assert digest in as_markdown(report)


def test_right_is_near_to_its_own_reference_and_to_no_other() -> None:
    items = tuple(
        Item(name, "s", (), (), text, None) for name, text in (("block", ANSWER), ("layer", OTHER))
    )
    judge = Judge(Bank(items, frozenset(), ""))
    assert judge.is_right(ANSWER.lower(), case())
    assert not judge.is_right(OTHER, case())  # F1 of 0.9, but the other item's answer.
    assert not judge.is_right("A block holds keys.", case())


@pytest.mark.parametrize(
    ("rule", "word", "text", "obeyed"),
    [
        ("begin", "Aye", "Aye. A block.", True),
        ("begin", "Aye", "A block.", False),
        ("end", "over", "A block. over.", True),
        ("say", "kiwi", "kiwi!", False),
        ("one", "", "One. Two.", False),
        ("name", "Ada", "I am Ada.", True),
        ("", "", "anything", True),
    ],
)
def test_a_form_is_obeyed_exactly(rule: str, word: str, text: str, obeyed: bool) -> None:
    assert obeys(text, case(rule=rule, word=word))[0] is obeyed
