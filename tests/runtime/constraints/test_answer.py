"""Answers go on where what their grammar remembers is full; no answer fills it for others."""

from __future__ import annotations

from concurrent.futures import Future
from random import Random

import pytest

from tests.constraints import walks
from tests.specs import resolved
from twostroke.constraints import grammar_constraint
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.compiling import first_masks
from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.runtime.constraints.answer import ConstrainedAnswer
from twostroke.sampling.request_state import RequestState

# Every count of letters that are left is a state of its own.
WANTED = StructuredOutputsParams(json={"type": "string", "minLength": 3000, "maxLength": 9000})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> GrammarCompiler:
    """Its grammars remember few states: those of about one answer."""
    monkeypatch.setattr(first_masks, "MAX_STATES", 2_000)
    monkeypatch.setattr(grammar_constraint, "MAX_STATES", 2_000)
    return GrammarCompiler(walks.tokenizer())


def write(compiler: GrammarCompiler, num_tokens: int, seed: int) -> tuple[list[int], str]:
    """Tokens of an answer, drawn at random from its masks, and the error that ended it, if any."""
    new = NewRequest(resolved("r", [70], params=SamplingParams(structured_outputs=WANTED)))
    request, random = RequestState.of(new), Random(seed)
    answer = ConstrainedAnswer(new, compiler, walks.tokenizer().vocab_size, on_cpu=True)
    for _ in range(num_tokens):
        answer.find_masks(request, ())
        outcome = answer.take_masks(())
        assert outcome is not None
        if isinstance(outcome, TwostrokeError):
            return request.token_ids[1:], outcome.message
        bits = outcome[0].biases() == 0
        allowed = [token for token, is_allowed in enumerate(bits) if is_allowed]
        request.token_ids.append(random.choice(allowed))
    return request.token_ids[1:], ""


def test_a_grammar_serves_any_number_of_answers(compiler: GrammarCompiler) -> None:
    """Together they go through many more states than it remembers."""
    for seed in range(12):
        tokens, error = write(compiler, 250, seed)
        assert not error and len(tokens) == 250
    # What is remembered was thrown away, not hoarded.
    assert compiler.compile(WANTED).num_bytes < 4_000 * grammar_constraint.BYTES_PER_STATE


def test_the_masks_are_those_of_a_grammar_with_room(compiler: GrammarCompiler) -> None:
    tokens, _ = write(compiler, 250, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_masks, "MAX_STATES", 50_000)
        grammar = GrammarCompiler(walks.tokenizer()).compile(WANTED)
    constraint = grammar.start([walks.END], walks.tokenizer().vocab_size)
    for token in tokens:
        assert token in walks.token_ids(constraint.allowed())
        constraint.advance([token])


def test_an_answer_that_needs_too_many_states_by_itself_ends(compiler: GrammarCompiler) -> None:
    tokens, error = write(compiler, 3_000, 0)
    assert "became too complex to follow" in error and "too many states" in error
    assert len(tokens) > 250
    again, error = write(compiler, 250, 1)  # which harms no other one
    assert not error and len(again) == 250


def test_without_a_tokenizer_there_are_no_forms() -> None:
    new = NewRequest(resolved("r", [70], params=SamplingParams(structured_outputs=WANTED)))
    answer = ConstrainedAnswer(new, None, 100, on_cpu=True)
    answer.find_masks(RequestState.of(new), ())
    assert isinstance(answer.take_masks(()), InvalidRequestError)


@pytest.mark.parametrize("as_drafts", [False, True])
def test_what_is_forced_but_found_too_late_is_left_out(as_drafts: bool) -> None:
    form = StructuredOutputsParams(regex="[xy](xxxy){9}")
    new = NewRequest(resolved("r", [70], params=SamplingParams(structured_outputs=form)))
    request = RequestState.of(new)
    answer = ConstrainedAnswer(new, walks.compiler(), walks.tokenizer().vocab_size, on_cpu=True)
    answer.find_masks(request, ())
    answer.take_masks(())
    first = walks.tokenizer().encode("y")
    request.token_ids += first
    answer.forcing = Future()
    answer.find_forced(first, as_drafts=as_drafts, until=float("inf"))
    assert answer.forced and answer.take_forced() == [] and not answer.is_free()
    answer.forcing.set_result(None)
    assert answer.is_free()  # without having taken them
    answer.find_masks(request, ())
    outcome = answer.take_masks(())
    assert outcome is not None and not isinstance(outcome, TwostrokeError)
    assert outcome[0].biases()[walks.tokenizer().encode("x")[0]] == 0


def test_nothing_forced_is_looked_for_when_the_time_is_over() -> None:
    form = StructuredOutputsParams(regex="[xy](xxxy){9}")
    new = NewRequest(resolved("r", [70], params=SamplingParams(structured_outputs=form)))
    answer = ConstrainedAnswer(new, walks.compiler(), walks.tokenizer().vocab_size, on_cpu=True)
    answer.find_masks(RequestState.of(new), ())
    answer.find_forced(walks.tokenizer().encode("y"), as_drafts=False, until=0.0)
    assert answer.forced == []


def test_masks_of_an_earlier_step_are_taken_for_the_drafts_that_they_follow() -> None:
    """They came too late for a step with drafts. The request runs once more, without those."""
    form = StructuredOutputsParams(regex="[xy](xxxy){9}")
    new = NewRequest(resolved("r", [70], params=SamplingParams(structured_outputs=form)))
    request, x, y = RequestState.of(new), *walks.tokenizer().encode("xy")
    answer = ConstrainedAnswer(new, walks.compiler(), walks.tokenizer().vocab_size, on_cpu=True)
    for drafts, num_masks in (((), 1), ((x,), 2), ((x, x), 3)):
        answer.find_masks(request, (x, x))
        masks = answer.take_masks(drafts)
        assert masks is not None and not isinstance(masks, TwostrokeError)
        assert len(masks) == num_masks
    for others in ((y,), (x, x, x)):
        answer.find_masks(request, (x, x))
        assert answer.take_masks(others) is None and answer.outcome is None
