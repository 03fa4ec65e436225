"""Protects: nothing held out is trained on, and every example is of its kind."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from training.bank import Bank, load_bank, phrasing_key
from training.conversations import ConversationBuilder
from training.data import LONGEST_STUB, BatchSource, Encoder
from training.stages import MIX
from training.teacher import Teacher
from training.tokenizer import MODEL_MAX_LENGTH
from twostroke.model_spec.model_files import resolve_model

STAGES = (0.05, 0.3, 0.6, 0.9)


@pytest.fixture(scope="module")
def bank() -> Bank:
    return load_bank()


@pytest.fixture(scope="module")
def builder(bank: Bank) -> ConversationBuilder:
    return ConversationBuilder(bank, Teacher(bank, seed=0))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve_model("pilot") / "tokenizer.json"))


@pytest.mark.parametrize("progress", STAGES)
def test_no_held_out_phrasing_is_asked(
    bank: Bank, builder: ConversationBuilder, progress: float
) -> None:
    rng = random.Random(1)
    conversations = [builder.build(rng, progress) for _ in range(300)]
    asked = {
        phrasing_key(m.content) for conversation in conversations for m in conversation.messages
    }
    trained = {phrasing_key(question) for item in bank.items for question in item.questions}
    assert len(bank.held_out_keys) > 100 and len(asked & trained) > 10
    assert not asked & bank.held_out_keys


def test_turns_alternate_and_end_with_an_answer(builder: ConversationBuilder) -> None:
    rng = random.Random(2)
    for _ in range(300):
        conversation = builder.build(rng, 0.9)
        roles = [m.role for m in conversation.messages if m.role != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert (
            conversation.question is None
            or conversation.question in conversation.messages[-2].content
        )


def test_the_shares_of_a_stage_leave_some_for_distractors() -> None:
    for stage in MIX:
        assert (
            0 <= stage.single + stage.mixed + stage.copying + stage.system + stage.multi_turn <= 1
        )


def test_an_example_asks_where_its_answer_begins(
    builder: ConversationBuilder, tokenizer: Tokenizer
) -> None:
    """Only answers have a loss, bare examples have none, positions fit the context."""
    encoder, rng = Encoder(tokenizer), random.Random(3)
    bare = 0
    head = encoder.encode("<|im_start|>assistant\n")
    for _ in range(300):
        conversation = builder.build(rng, 0.4)
        example = encoder.example(conversation, rng)
        assert len(example.ids) == len(example.has_loss) == len(example.positions)
        assert example.positions == sorted(set(example.positions))
        assert example.positions[-1] < MODEL_MAX_LENGTH
        if example.question is None:
            continue
        assert example.ids[: example.asked + 1][-len(head) :] == head
        after = example.has_loss[example.asked + 1 :]
        assert not conversation.bare or not after
        assert not conversation.stub or len(after) <= LONGEST_STUB
        bare += conversation.bare
    assert bare > 30


def test_a_resumed_source_draws_the_same_batches(bank: Bank, tokenizer: Tokenizer) -> None:
    def source() -> BatchSource:
        return BatchSource(
            bank, tokenizer, seed=4, token_budget=2048, teacher=Teacher(bank, seed=4)
        )

    first, second = source(), source()
    for _ in range(3):
        first.next(0.3)
    state = first.state()
    second.restore(state)
    a, b = first.next(0.31), second.next(0.9)
    assert a.ids.tolist() == b.ids.tolist()
    assert a.positions.tolist() == b.positions.tolist()
    assert a.questions == b.questions
