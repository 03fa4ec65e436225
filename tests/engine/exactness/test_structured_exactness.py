"""What an answer's form must not change: whatever else runs, each request gets what a plain loop
with the same masks gives it, and what ends is what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.constraints import walks
from tests.engine.exactness.test_exactness import Call, naive_answer, run
from tests.proposers import GUESSING, Guessing, ScriptedProposer
from tests.runtime.constraints.late_masks import late_masks
from tests.server.tiny import VOCAB, checkpoint
from tests.specs import resolved
from tests.wire import decode, encode
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import AllowedTokens, Constraint, Grammar
from twostroke.constraints.starting import start_constraint
from twostroke.core.config import EngineConfig
from twostroke.core.errors import InvalidRequestError, RequestFailedError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import NewRequest
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.engine.answer import CollectedAnswer
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.scheduling.speculation import FixedDepth

PERSON = {
    "type": "object",
    "properties": {"age": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": [1]}}},
    "required": ["age"],
    "additionalProperties": False,
}
FORMS: list[StructuredOutputsParams | None] = [
    None,
    StructuredOutputsParams(json=PERSON, disable_any_whitespace=True),
    StructuredOutputsParams(json={"type": ["integer", "null", "boolean"]}),
    StructuredOutputsParams(regex=r"[a-c]{2,9}(dog|the)"),
    StructuredOutputsParams(choice=["prefill", "decode", "de"]),
    StructuredOutputsParams(grammar='root ::= "(" root ")" | "x"'),
    StructuredOutputsParams(json_object=True),
]


def make_engine(num_blocks: int = 400, **options: Any) -> LLMEngine:
    """On the tiny model; a block has 8 tokens."""
    config = EngineConfig.from_flat(
        {
            "model": str(checkpoint()),
            "device": "cpu",
            "dtype": "float32",
            "max_model_len": 64,
            "block_size": 8,
            "kv_cache_memory": num_blocks * 8 * 2 * 2 * 2 * 8 * 4,
            **options,
        }
    )
    grammars = GrammarCompiler(walks.tokenizer())
    executor = load_torch_executor(config, grammars=grammars)
    return LLMEngine(executor, walks.tokenizer(), config, grammars=grammars)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    sampled = draw(st.booleans())
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 3])),
        temperature=draw(st.sampled_from([0.7, 1.5])) if sampled else 0.0,
        top_k=draw(st.sampled_from([0, 40])) if sampled else 0,
        top_p=draw(st.sampled_from([0.6, 1.0])) if sampled else 1.0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        logprobs=draw(st.sampled_from([None, 2])),
        seed=draw(st.integers(0, 2**64 - 1)),
        max_tokens=draw(st.integers(1, 20)),
        min_tokens=draw(st.sampled_from([0, 0, 1])),
        ignore_eos=draw(st.sampled_from([False, False, True])),
        structured_outputs=draw(st.sampled_from(FORMS)),
    )


def thinking(params: SamplingParams, budget: int) -> SamplingParams:
    """The same behind a thought that the prompt opens."""
    form = params.structured_outputs
    return replace(
        params,
        thinking_token_budget=budget,
        structured_outputs=None if form is None else replace(form, thought="opened"),
        max_tokens=(params.max_tokens or 0) + 12,
    )


def constraint_of(request: GenerationRequest) -> Constraint | None:
    """What the request's answer is held to, made without an engine."""
    if not request.params.is_constrained:
        return None
    prompt = request.prompt_token_ids
    spec = resolved("r", prompt, params=request.params, eos_token_ids=frozenset({walks.END}))
    return start_constraint(walks.compiler(), NewRequest(spec), VOCAB)


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    random = Random(draw(st.integers(0, 2**32)))
    shared = [random.randrange(1, VOCAB) for _ in range(24)]
    made = []
    for number in range(draw(st.integers(1, 6))):
        own = [random.randrange(1, VOCAB) for _ in range(random.randrange(1, 12))]
        prompt, drawn = shared[: random.choice([0, 8, 24])] + own, draw(params())
        if random.random() < 0.3:
            thought = walks.tokenizer().encode("<think>", add_special_tokens=False)
            prompt = prompt[-24:] + thought  # with the most tokens, 64: the whole context
            drawn = thinking(drawn, random.randrange(6))
        request = GenerationRequest(
            request_id=str(number),
            prompt_token_ids=prompt,
            params=drawn,
        )
        abort_at = random.randrange(12) if random.random() < 0.15 else None
        made.append(Call(random.randrange(8), request, abort_at))
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=calls(),
    budget=st.sampled_from([5, 16, 256]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    num_blocks=st.sampled_from([9, 12, 40]),
    late=st.sampled_from([None, None, 0, 1]),
)
def test_every_answer_with_a_form_equals_a_plain_loop_with_masks(
    calls: list[Call], budget: int, max_num_seqs: int, num_blocks: int, late: int | None
) -> None:
    """Random mixes of forms and free text under scarce blocks: preempted requests replay, and some
    masks come after their pass, which is then run again.
    """
    engine = make_engine(num_blocks, max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    with nullcontext() if late is None else late_masks(late):
        outputs = run(engine, calls)
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    for call in calls:
        request, wanted = call.request, call.request.params.structured_outputs
        for index in range(request.params.n):
            tokens, reason = outputs.get((request.request_id, index), ([], FinishReason.ABORT))
            expected, expected_reason = naive_answer(
                executor, request, index, constraint_of(request)
            )
            if reason is FinishReason.ABORT:
                expected, expected_reason = expected[: len(tokens)], FinishReason.ABORT
            assert (tokens, reason) == (expected, expected_reason), (wanted, index)


@pytest.fixture(scope="module")
def engine() -> LLMEngine:
    return make_engine(max_num_seqs=64)


def answers(engine: LLMEngine, *wanted: SamplingParams) -> list[CollectedAnswer]:
    """One answer each, of requests that run together."""
    for number, each in enumerate(wanted):
        engine.submit(
            GenerationRequest(request_id=str(number), prompt_token_ids=[70 + number], params=each)
        )
    collected = [CollectedAnswer() for _ in wanted]
    while engine.has_work():
        for output in engine.step():
            collected[int(output.request_id)].add(output)
    return collected


def test_sampled_answers_that_end_by_themselves_are_valid(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(json=PERSON)
    asked = [
        SamplingParams(seed=seed, temperature=1.5, max_tokens=60, structured_outputs=form)
        for seed in range(40)
    ]
    collected = answers(engine, *asked)
    ended = [answer for answer in collected if answer.finish_reason is FinishReason.STOP]
    assert len(ended) >= 5
    for answer in ended:
        jsonschema.validate(json.loads(answer.text), PERSON)
    cut = [answer for answer in collected if answer.finish_reason is not FinishReason.STOP]
    assert all(answer.finish_reason is FinishReason.LENGTH for answer in cut)


def test_an_answer_that_is_cut_says_so(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(regex="a{30}")
    (answer,) = answers(engine, SamplingParams(max_tokens=5, structured_outputs=form))
    assert answer.finish_reason is FinishReason.LENGTH and set(answer.text) == {"a"}


def test_a_complete_answer_ends_before_min_tokens(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(choice=["x"])
    wanted = SamplingParams(max_tokens=9, min_tokens=6, structured_outputs=form)
    (answer,) = answers(engine, wanted)
    assert (answer.text, answer.finish_reason) == ("x", FinishReason.STOP)


def test_min_tokens_holds_while_the_form_can_go_on(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(regex="x*")
    wanted = SamplingParams(max_tokens=20, min_tokens=6, structured_outputs=form)
    (answer,) = answers(engine, wanted)
    assert len(answer.text) >= 6


def test_under_ignore_eos_nothing_but_end_tokens_follows(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(choice=["x"])
    wanted = SamplingParams(max_tokens=5, ignore_eos=True, structured_outputs=form)
    (answer,) = answers(engine, wanted)
    assert (answer.text, len(answer.token_ids)) == ("x", 5)
    assert set(answer.token_ids[1:]) == {walks.END}


def test_a_special_token_that_stops_is_allowed_where_the_answer_may_end(engine: LLMEngine) -> None:
    """A client's stop token takes the end token's place: here that is banned."""
    special = walks.tokenizer().encode("<|start|>")[0]
    form = StructuredOutputsParams(choice=["x"])
    wanted = SamplingParams(
        max_tokens=5,
        stop_token_ids=[special],
        banned_token_ids=[walks.END],
        structured_outputs=form,
    )
    (answer,) = answers(engine, wanted)
    assert (answer.text, answer.stop_reason) == ("x", special)


def test_stop_strings_end_an_answer_with_a_form(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(regex="aab{9}")
    wanted = SamplingParams(max_tokens=20, stop=["bb"], structured_outputs=form)
    (answer,) = answers(engine, wanted)
    assert (answer.text, answer.stop_reason) == ("aa", "bb")


def test_masks_that_leave_nothing_name_the_form(engine: LLMEngine) -> None:
    form = StructuredOutputsParams(choice=["x"])
    token = walks.tokenizer().encode("x")[0]
    banned = SamplingParams(banned_token_ids=[token], structured_outputs=form)
    failed, fine = answers(engine, banned, SamplingParams(structured_outputs=form))
    assert isinstance(failed.error, InvalidRequestError)
    assert "structured_outputs and banned_token_ids" in failed.error.message
    assert fine.text == "x"


def test_log_probabilities_are_those_of_the_raw_logits(engine: LLMEngine) -> None:
    """The form decides what is drawn, not what the model thinks of it."""
    form = StructuredOutputsParams(choice=["x"])
    wanted = SamplingParams(temperature=0, logprobs=3, max_tokens=4, structured_outputs=form)
    (answer,) = answers(engine, wanted)
    first = answer.logprobs[0]
    assert first.chosen.logprob < -0.01 and first.chosen.rank > 1
    assert len(first.top) == 3 and first.top[0].logprob > first.chosen.logprob


class Panic(BaseException):
    """As PyO3 raises it: no Exception."""


class PanickingGrammar:
    """Implements ``Grammar``; what it starts panics from its third mask on."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    @property
    def num_bytes(self) -> int:
        return self._grammar.num_bytes

    def start(
        self, end_token_ids: Sequence[int], vocab_size: int, *, alone: bool = False
    ) -> Constraint:
        return PanickingConstraint(self._grammar.start(end_token_ids, vocab_size, alone=alone))


class PanickingConstraint:
    def __init__(self, constraint: Constraint) -> None:
        self._constraint = constraint
        self._num_masks = 0
        self.advance, self.roll_back = constraint.advance, constraint.roll_back

    def forced(self) -> list[int]:
        return []  # where a pass is slow, there is time to find that nine letters are

    def allowed(self) -> AllowedTokens:
        self._num_masks += 1
        if self._num_masks >= 3:
            raise Panic
        return self._constraint.allowed()


def test_a_panic_in_the_library_fails_that_request_only(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, other = StructuredOutputsParams(regex="a{9}"), StructuredOutputsParams(regex="b{9}")
    assert engine.grammars is not None
    compile_really = engine.grammars.compile

    def compile_badly(wanted: StructuredOutputsParams) -> Grammar:
        grammar = compile_really(wanted)
        return PanickingGrammar(grammar) if wanted == form else grammar

    monkeypatch.setattr(engine.grammars, "compile", compile_badly)
    failed, fine = answers(
        engine,
        SamplingParams(max_tokens=20, structured_outputs=form),
        SamplingParams(max_tokens=20, structured_outputs=other),
    )
    assert isinstance(failed.error, RequestFailedError) and "Panic" in failed.error.message
    assert (fine.text, fine.finish_reason) == ("b" * 9, FinishReason.STOP)


def test_a_form_survives_the_wire() -> None:
    """An executor may live in another process: it gets the description, and compiles it."""
    form = StructuredOutputsParams(json=PERSON, disable_any_whitespace=True)
    params = SamplingParams(structured_outputs=form)
    assert decode(encode(params), SamplingParams) == params
    choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a", "b"]))
    assert decode(encode(choice), SamplingParams) == choice


def test_an_engine_without_a_tokenizer_refuses() -> None:
    config = EngineConfig.from_flat({"model": str(checkpoint()), "kv_cache_memory": 2**20})
    engine = LLMEngine(load_torch_executor(config), None, config)
    params = SamplingParams(detokenize=False, structured_outputs=FORMS[-1])
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        engine.submit(GenerationRequest(request_id="a", prompt_token_ids=[1], params=params))


def test_tokens_without_a_choice_are_taken_in_one_pass(engine: LLMEngine) -> None:
    """The same tokens as one by one, in far fewer steps; as drafts where logits are needed."""
    schema = {
        "type": "object",
        "properties": {f"the name of field {n}": {"type": "boolean"} for n in range(2)},
        "required": ["the name of field 0", "the name of field 1"],
        "additionalProperties": False,
    }
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    steps, tokens = [], []
    for depth, logprobs in ((0, 0), (None, 0), (None, None)):
        wanted = SamplingParams(
            seed=1, max_tokens=60, logprobs=logprobs, speculation=depth, structured_outputs=form
        )
        before = engine.recorder.events()[-1].step if engine.recorder.events() else -1
        (answer,) = answers(engine, wanted)
        assert answer.finish_reason is FinishReason.STOP
        assert len(answer.logprobs) == (0 if logprobs is None else len(answer.token_ids))
        steps.append(engine.recorder.events()[-1].step - before)
        tokens.append(answer.token_ids)
    assert tokens[0] == tokens[1] == tokens[2]
    assert steps[0] == len(tokens[0]) and max(steps[1:]) < steps[0] / 3


@pytest.mark.parametrize("guessing", GUESSING)
def test_drafts_change_no_answer_with_a_form(engine: LLMEngine, guessing: Guessing) -> None:
    """Right guesses, wrong ones that the form forbids, and all of them behind forced tokens."""
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    form = StructuredOutputsParams(json=PERSON)
    wanted = [
        SamplingParams(seed=seed, max_tokens=30, structured_outputs=form) for seed in range(6)
    ]
    alone = [answer.token_ids for answer in answers(engine, *wanted)]
    known = {str(number): tokens for number, tokens in enumerate(alone)}
    proposer = ScriptedProposer(known, guessing, VOCAB)
    executor.hooks.insert(0, ProposedDrafts(proposer))
    engine.scheduler.depth = FixedDepth(4)
    try:
        assert [answer.token_ids for answer in answers(engine, *wanted)] == alone
        assert proposer.num_drafted > 0
    finally:
        del executor.hooks[0]
        engine.scheduler.depth = FixedDepth()
