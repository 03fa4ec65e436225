"""A thought ends at its budget, cleanly; what comes behind it keeps its form."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.constraints import walks
from tests.constraints.test_harmony_answers import compiler as harmony
from tests.specs import resolved
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import Constraint
from twostroke.constraints.starting import start_constraint
from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest
from twostroke.core.structured_outputs import StructuredOutputsParams

NUMBER = StructuredOutputsParams(regex="[0-9]{3}")


def start(
    budget: int,
    form: StructuredOutputsParams | None = None,
    prompt: str = "think: <think>\n",
    compiler: Callable[[], GrammarCompiler] = walks.compiler,
) -> Constraint:
    grammars = compiler()
    tokens = grammars.tokenizer.encode(prompt, add_special_tokens=False)
    params = SamplingParams(thinking_token_budget=budget, structured_outputs=form)
    spec = resolved("r", tokens, params=params, eos_token_ids=frozenset({walks.END}))
    return start_constraint(grammars, NewRequest(spec), grammars.tokenizer.backend.get_vocab_size())


def write(
    constraint: Constraint, text: str, compiler: Callable[[], GrammarCompiler] = walks.compiler
) -> bool:
    """Whether a text is allowed from here on, token by token."""
    for token in compiler().tokenizer.encode(text, add_special_tokens=False):
        if token not in walks.token_ids(constraint.allowed()):
            return False
        constraint.advance([token])
    return True


def num_tokens(text: str) -> int:
    return len(walks.tokenizer().encode(text, add_special_tokens=False))


def follow_forced(constraint: Constraint) -> str:
    """What must come next, taken token by token, as forced() says at once."""
    forced = constraint.forced()
    for token in forced:
        assert walks.token_ids(constraint.allowed()) == [token]
        constraint.advance([token])
    return walks.tokenizer().decode(forced)


@pytest.mark.parametrize(
    ("thought", "end"), [("hm so", "\n</think>\n\n"), ("hm\n", "</think>\n\n")]
)
def test_the_end_is_forced_behind_the_last_token(thought: str, end: str) -> None:
    constraint = start(num_tokens(thought))
    assert write(constraint, thought)
    assert not constraint.allowed().only_end
    assert follow_forced(constraint) == end
    assert len(walks.token_ids(constraint.allowed())) == walks.tokenizer().backend.get_vocab_size()
    assert write(constraint, "<think> is a word now, and there is no bound: " + "x" * 100)


def test_no_thought_at_all() -> None:
    """As templates write it where thinking is switched off."""
    assert follow_forced(start(0)) == "</think>\n\n"
    constraint = start(0, prompt="no thought here: ")
    assert constraint.forced() == []
    assert write(constraint, "\n<think>") and follow_forced(constraint) == "</think>\n\n"


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    constraint = start(50)
    assert write(constraint, "hm</think>" + "x" * 100)
    constraint = start(5, prompt="no thought here: ")
    assert write(constraint, "no thought, but <think> later, and long: " + "x" * 100)


def test_a_character_is_not_cut() -> None:
    tokens = walks.tokenizer().encode("👩", add_special_tokens=False)
    rare = walks.tokenizer().encode("𝄞", add_special_tokens=False)  # no token of its own
    assert len(rare) > 1 and tokens
    for budget in range(1, len(rare)):
        constraint = start(budget)
        assert write(constraint, "𝄞")
        assert follow_forced(constraint) == "\n</think>\n\n"


def test_the_form_begins_behind_the_thought() -> None:
    form = StructuredOutputsParams(regex="[0-9]{3}", thought="opened")
    constraint = start(num_tokens("hm so"), form)
    assert write(constraint, "hm so")
    assert follow_forced(constraint) == "\n</think>\n\n"
    assert not write(constraint, "x") and write(constraint, "123")
    assert walks.token_ids(constraint.allowed()) == [walks.END]
    optional = StructuredOutputsParams(regex="[0-9]{3}", thought="optional")
    assert write(start(2, optional, prompt="x"), "123")


def test_tokens_taken_back_are_as_if_they_had_not_come() -> None:
    """At each place, also within the forced end, and behind it."""
    random = Random(1)
    form = StructuredOutputsParams(regex="[0-9]{3}", thought="opened")
    text = walks.tokenizer().encode("hm so\n</think>\n\n123", add_special_tokens=False)
    constraint = start(num_tokens("hm so"), form)
    place = 0
    for _ in range(200):
        if place and random.random() < 0.5:
            count = random.randint(1, place)
            constraint.roll_back(count)
            place -= count
        elif place < len(text):
            constraint.advance([text[place]])
            place += 1
        fresh = start(num_tokens("hm so"), form)
        fresh.advance(text[:place])
        assert walks.token_ids(constraint.allowed()) == walks.token_ids(fresh.allowed())


def test_another_token_than_the_forced_one_is_refused() -> None:
    constraint = start(0)
    with pytest.raises(InvalidRequestError, match="does not end the thought"):
        constraint.advance(walks.tokenizer().encode("x"))


def test_thoughts_in_channels_share_the_budget() -> None:
    """The model then opens another message, and a second thought ends at once."""
    opening = "<|channel|>analysis<|message|>"
    tokens = harmony().tokenizer.encode("the dog sleeps", add_special_tokens=False)
    constraint = start(len(tokens), prompt="<|start|>assistant", compiler=harmony)
    assert write(constraint, opening, harmony)
    constraint.advance(tokens)
    forced = constraint.forced()
    assert harmony().tokenizer.decode(forced, False) == "<|end|><|start|>assistant"
    constraint.advance(forced)
    assert write(constraint, opening, harmony)
    assert constraint.forced() == forced
    constraint.advance(forced)
    assert write(constraint, "<|channel|>final<|message|>the answer", harmony)
