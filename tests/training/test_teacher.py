"""Protects: the bag-of-words teacher gives the same on every run, and learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.banks import small_bank
from training.augment import Rephraser
from training.model import BAG_SCALE, Chooser, give_meanings, make_model
from training.teacher import BUCKETS, Teacher, features_of


def test_it_learns_which_item_a_question_wants(tmp_path: Path) -> None:
    bank = small_bank(tmp_path)
    teacher = Teacher(bank, seed=0)
    teacher.learn(Rephraser(bank), 30, seed=0)
    assert teacher.right() == 1.0
    shares = teacher.shares(["what for would i want caching", ""])
    assert shares.shape == (2, 5)
    assert torch.allclose(shares.sum(-1), torch.ones(2), atol=1e-5)
    assert bank.items[int(shares[0].argmax())].id == "caching"


def test_an_item_with_the_same_answer_is_right_too(tmp_path: Path) -> None:
    """Refusals share answers: which of them a question wants does not matter."""
    bank = small_bank(tmp_path)
    teacher = Teacher(bank, seed=0)
    with torch.no_grad():
        teacher.out.weight.zero_()
        teacher.out.bias[0] = 1.0  # it answers everything with the first item
    assert teacher.right() == pytest.approx(1 / 5)
    same = replace(
        bank,
        items=(bank.items[0], replace(bank.items[1], answer=bank.items[0].answer), *bank.items[2:]),
    )
    sharing = Teacher(same, seed=0)
    sharing.load_state_dict(teacher.state_dict())
    assert sharing.right() == pytest.approx(2 / 5)


def test_the_same_seed_gives_the_same_teacher(tmp_path: Path) -> None:
    """A training that is stopped and one that is not have to be the same."""
    bank = small_bank(tmp_path)
    teachers = [Teacher(bank, seed=seed) for seed in (1, 1, 2)]
    for teacher, seed in zip(teachers, (1, 1, 2), strict=True):
        teacher.learn(Rephraser(bank), 3, seed)
    one, same, other = (teacher.shares(["quantisation, please"]) for teacher in teachers)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_features_are_buckets_and_never_none() -> None:
    assert all(0 <= f < BUCKETS for f in features_of("What is the KV cache?"))
    assert features_of("What is it?") == features_of("what IS it")
    assert features_of("?!")


@pytest.mark.parametrize("size", ["pilot", "draft"])
def test_a_model_begins_with_what_the_teacher_knows_of_its_tokens(
    tmp_path: Path, size: str
) -> None:
    """Added up, they choose the right item untrained; tokens without words stay."""
    bank = small_bank(tmp_path)
    teacher = Teacher(bank, seed=0)
    teacher.learn(Rephraser(bank), 30, seed=0)
    model = make_model(size, seed=0)
    hidden, vocabulary = model.config.hidden_size, model.config.vocab_size
    chooser = Chooser(hidden, len(bank.items))
    words = [item.id for item in bank.items] + ["?"] * (vocabulary - len(bank.items))
    before = model.model.embed_tokens.weight.detach().clone()
    give_meanings(model, chooser, teacher, words)
    after = model.model.embed_tokens.weight.detach()
    chosen = chooser.words(BAG_SCALE * after[: len(bank.items), hidden // 2 :]).argmax(-1)
    assert chosen.tolist() == list(range(len(bank.items)))
    assert torch.equal(after[:, : hidden // 2], before[:, : hidden // 2])
    assert torch.equal(after[len(bank.items) :], before[len(bank.items) :])
