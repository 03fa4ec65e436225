"""What the seam promises: masks follow tokens, rolling back undoes them, ends are the request's."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.constraints import walks
from twostroke.constraints.constraint import Constraint
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

FORMS = [
    StructuredOutputsParams(json={"type": "object", "required": ["name"]}),
    StructuredOutputsParams(regex="[a-c]{2,5}(dog|the)?"),
    StructuredOutputsParams(choice=["prefill", "decode", "dec"]),
    StructuredOutputsParams(grammar='start: "a" | "(" start ")"'),
]


def tokens_of(text: str) -> list[int]:
    return walks.tokenizer().encode(text, add_special_tokens=False)


@settings(max_examples=60, deadline=None)
@given(form=st.sampled_from(FORMS), seed=st.integers(0, 2**32))
def test_rolling_back_is_as_if_the_tokens_had_not_come(
    form: StructuredOutputsParams, seed: int
) -> None:
    """Random steps forward and back, end tokens among them, against a constraint made anew."""
    random, constraint, taken = Random(seed), walks.start(form), list[int]()
    for _ in range(25):
        allowed = walks.token_ids(constraint.allowed())
        if taken and random.random() < 0.3:
            count = random.randrange(1, len(taken) + 1)
            constraint.roll_back(count)
            del taken[-count:]
        else:
            token = random.choice(allowed)
            constraint.advance([token])
            taken.append(token)
        fresh = walks.start(form)
        fresh.advance(taken)
        one, other = constraint.allowed(), fresh.allowed()
        assert one.bits.tobytes() == other.bits.tobytes() and one.only_end == other.only_end
        assert constraint.forced() == fresh.forced()


def test_forced_tokens_are_those_without_a_choice() -> None:
    constraint = walks.start(StructuredOutputsParams(regex="(a|b)prefill"))
    assert constraint.forced() == []
    constraint.advance(tokens_of("a"))
    forced = constraint.forced()
    assert walks.tokenizer().decode(forced) == "prefill"
    for token in forced:
        assert walks.token_ids(constraint.allowed()) == [token]
        constraint.advance([token])
    assert constraint.allowed().only_end and constraint.forced() == []


def test_the_end_is_allowed_where_the_answer_may_end_and_nothing_behind_it_but_ends() -> None:
    constraint = walks.start(StructuredOutputsParams(regex="a+"))
    assert walks.END not in walks.token_ids(constraint.allowed())
    constraint.advance(tokens_of("a"))
    allowed = constraint.allowed()
    assert walks.END in walks.token_ids(allowed) and not allowed.only_end
    constraint.advance([walks.END, walks.END])
    assert walks.token_ids(constraint.allowed()) == [walks.END]
    assert constraint.allowed().only_end


def test_several_ends_are_allowed_alike_whether_or_not_they_are_text() -> None:
    """The model's end may be a token that a text could hold as well: there it is not allowed."""
    as_text = tokens_of("the")[0]
    form = StructuredOutputsParams(regex="(the|a)+")
    constraint = walks.compiler().compile(form).start([walks.END, as_text], 400)
    assert as_text not in walks.token_ids(constraint.allowed())
    constraint.advance(tokens_of("a"))
    assert {walks.END, as_text} <= set(walks.token_ids(constraint.allowed()))


@pytest.mark.parametrize("vocab_size", [100, 332, 333, 1000])
def test_masks_have_the_models_vocabulary(vocab_size: int) -> None:
    """It may be larger than the tokenizer's (padded), or smaller; neither adds a token."""
    constraint = walks.start(StructuredOutputsParams(regex="(.|\n)+"), vocab_size)
    constraint.advance(tokens_of("a"))
    allowed = constraint.allowed()
    tokens = walks.token_ids(allowed)
    assert len(allowed.bits) == -(-vocab_size // 8)
    assert max(tokens) < min(vocab_size, walks.tokenizer().vocab_size)


def test_special_tokens_are_no_text() -> None:
    constraint = walks.start(StructuredOutputsParams(regex="(.|\n)+"))
    special = walks.tokenizer().special_ids
    assert not special & set(walks.token_ids(constraint.allowed()))


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    for wrong in (tokens_of("b")[0], walks.END, 10**6):
        constraint: Constraint = walks.start(StructuredOutputsParams(regex="a+"))
        with pytest.raises(InvalidRequestError):
            constraint.advance([wrong])


def test_a_grammar_that_explodes_ends_that_answer() -> None:
    """Its readings multiply with each token; the library's limits stop it, and say so."""
    constraint = walks.start(StructuredOutputsParams(grammar='start: e\ne: e e | e e e | "a"'))
    with pytest.raises(InvalidRequestError, match="too complex to follow"):
        for _ in range(300):
            constraint.allowed()
            constraint.advance(tokens_of("a"))


def test_one_of_thousands_of_texts() -> None:
    texts = [f"choice number {number}" for number in range(10_000)]
    form = StructuredOutputsParams(choice=texts)
    assert walks.accepts(walks.start(form), "choice number 777")
    assert not walks.accepts(walks.start(form), "choice number 10000")
    assert walks.accepts(walks.start(StructuredOutputsParams(choice=['é "q"\n\\'])), 'é "q"\n\\')


def test_anchors_of_an_expression_say_nothing() -> None:
    """It matches the whole answer, as in vLLM; a dollar sign behind a backslash is a character."""
    for regex, text in (("^a+$", "aa"), ("a+", "a"), (r"a\$", "a$"), (r"\d{2}", "42")):
        assert walks.accepts(walks.start(StructuredOutputsParams(regex=regex)), text), regex
    assert not walks.accepts(walks.start(StructuredOutputsParams(regex="^a$")), "ba")
