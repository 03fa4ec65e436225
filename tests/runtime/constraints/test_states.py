"""A form that takes long to look up holds up its own answer, and no other's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from unittest.mock import patch

import pytest

from tests.constraints import walks
from tests.engine.exactness.test_structured_exactness import make_engine
from twostroke.constraints.constraint import AllowedTokens, Constraint, Grammar
from twostroke.constraints.grammar_constraint import CompiledGrammar
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.engine.llm_engine import LLMEngine

SLOW = StructuredOutputsParams(regex="[ab]{20}", scope="slow")
USUAL = StructuredOutputsParams(regex="[cd]{20}", scope="usual")


class SlowGrammar:
    """Implements ``Grammar``; each mask of what it starts works for some 20 ms."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self.num_masks = 0

    @property
    def num_bytes(self) -> int:
        return self._grammar.num_bytes

    def start(
        self, end_token_ids: Sequence[int], vocab_size: int, *, alone: bool = False
    ) -> Constraint:
        return SlowConstraint(self, self._grammar.start(end_token_ids, vocab_size, alone=alone))


class SlowConstraint:
    def __init__(self, grammar: SlowGrammar, constraint: Constraint) -> None:
        self._grammar, self._constraint = grammar, constraint
        self.advance, self.roll_back = constraint.advance, constraint.roll_back
        self.forced = constraint.forced

    def allowed(self) -> AllowedTokens:
        self._grammar.num_masks += 1
        began = time.thread_time()
        while time.thread_time() - began < 0.02:  # as the library does, without the interpreter
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2_000)
        return self._constraint.allowed()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> LLMEngine:
    """``SLOW`` is slow here."""
    engine = make_engine(max_num_seqs=64)
    assert engine.grammars is not None
    compile_really = engine.grammars.compile
    slow = SlowGrammar(compile_really(SLOW))
    monkeypatch.setattr(
        engine.grammars, "compile", lambda form: slow if form == SLOW else compile_really(form)
    )
    return engine


def submit(engine: LLMEngine, name: str, form: StructuredOutputsParams | None, n: int = 1) -> None:
    params = SamplingParams(n=n, temperature=1, seed=1, max_tokens=20, structured_outputs=form)
    engine.submit(GenerationRequest(request_id=name, prompt_token_ids=[70], params=params))


def step_until(engine: LLMEngine, name: str) -> dict[str, list[RequestOutput]]:
    """All outputs by request, up to the one that ends ``name``."""
    got: dict[str, list[RequestOutput]] = {}
    for _ in range(10_000):
        for output in engine.step():
            got.setdefault(output.request_id, []).append(output)
        if name in got and got[name][-1].finished:
            return got
    raise AssertionError(f"{name} does not end")


@pytest.mark.parametrize("form", [USUAL, None])
def test_others_go_on_while_a_slow_form_is_looked_up(
    engine: LLMEngine, form: StructuredOutputsParams | None
) -> None:
    """In step with eight slow answers, twenty tokens would take 20 x 8 x 20 ms."""
    submit(engine, "slow", SLOW, n=8)
    submit(engine, "other", form)
    got = step_until(engine, "other")
    num_slow = sum(len(output.token_ids) for output in got.get("slow", []))
    assert num_slow < 20
    for output in step_until(engine, "slow")["slow"]:
        assert output.error is None


def test_a_slow_answer_is_what_it_would_be(engine: LLMEngine) -> None:
    """Its tokens do not depend on how often its turn was put off."""
    submit(engine, "slow", SLOW)
    submit(engine, "other", None)
    tokens = [t for output in step_until(engine, "slow")["slow"] for t in output.token_ids]
    usual = make_engine(max_num_seqs=64)
    submit(usual, "slow", SLOW)
    expected = [t for output in step_until(usual, "slow")["slow"] for t in output.token_ids]
    assert tokens == expected and len(tokens) == 20


def test_alone_a_slow_answer_runs_no_pass_in_vain(engine: LLMEngine) -> None:
    submit(engine, "slow", SLOW)
    num_steps = 0
    while engine.has_work():
        engine.step()
        num_steps += 1
    assert num_steps <= 21


def test_a_request_may_leave_while_its_masks_are_looked_up(engine: LLMEngine) -> None:
    submit(engine, "slow", SLOW, n=4)
    submit(engine, "other", None)
    for _ in range(3):
        engine.step()
    assert {o.finish_reason for o in engine.abort("slow")} == {FinishReason.ABORT}
    step_until(engine, "other")
    engine.scheduler.kv.check_integrity()
    submit(engine, "slow", SLOW)  # the same id, anew
    assert step_until(engine, "slow")["slow"][-1].error is None
    engine.close()


def test_as_many_tokens_are_forced_as_the_answer_may_have(engine: LLMEngine) -> None:
    """Not 64 for each request, whatever it asks for."""
    form = StructuredOutputsParams(regex="a{60}")
    assert engine.grammars is not None
    constraint = engine.grammars.compile(form).start([walks.END], engine.info.vocab_size)
    advanced: list[int] = []
    advance = constraint.advance

    def counting(tokens: Sequence[int]) -> None:
        advanced.extend(tokens)
        advance(tokens)

    with (
        patch.object(constraint, "advance", counting),
        patch.object(CompiledGrammar, "start", lambda *_, **__: constraint),
    ):
        params = SamplingParams(max_tokens=3, structured_outputs=form)
        engine.submit(GenerationRequest(request_id="a", prompt_token_ids=[70], params=params))
        got = step_until(engine, "a")["a"]
    assert sum(len(output.token_ids) for output in got) == 3
    assert len(advanced) <= 3
