"""Protects: a call is validated before anything is queued, and its parameters only once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.calls import TOKENIZER, TextExecutor, call, finish
from tests.fakes import VOCAB, FakeExecutor
from twostroke.core.config import EngineConfig, ModelOptions
from twostroke.core.errors import (
    InvalidRequestError,
    RequestTooLargeError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import make_requests
from twostroke.text.tokenizer import Tokenizer


@pytest.mark.parametrize(
    "request_, error, param",
    [
        (GenerationRequest(request_id="x", prompt_token_ids=[]), InvalidRequestError, "prompt"),
        (call("x", [1, VOCAB]), InvalidRequestError, "prompt"),
        (call("x", [1, -1]), InvalidRequestError, "prompt"),
        (call("x", [1] * 128), RequestTooLargeError, "prompt"),
        (call("x", [1] * 100, max_tokens=29), RequestTooLargeError, "max_tokens"),
        (call("x", stop_token_ids=[VOCAB]), InvalidRequestError, "stop_token_ids"),
        (call("x", detokenize=True), InvalidRequestError, "detokenize"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_queued(
    request_: GenerationRequest, error: type[InvalidRequestError], param: str
) -> None:
    engine = LLMEngine(FakeExecutor())
    with pytest.raises(error) as caught:
        engine.submit(request_)
    assert caught.value.param == param
    assert not engine.has_work()


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"priority": "high"}, "priority"),
        ({"priority": None}, "priority"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"request_id": "a#1"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"prompt_token_ids": [True]}, "prompt"),
        ({"prompt_token_ids": [1.0]}, "prompt"),
    ],
)
def test_wrong_types_from_python_are_refused(fields: dict[str, Any], param: str) -> None:
    """A bad value that reached the scheduler's queue would end the engine, and all requests."""
    with pytest.raises(InvalidRequestError) as caught:
        LLMEngine(FakeExecutor()).submit(replace(call("x"), **fields))
    assert caught.value.param == param


def test_bad_words_are_banned_as_they_are_written() -> None:
    engine = LLMEngine(TextExecutor({}), TOKENIZER)
    request = engine.prepare(call("a", detokenize=True, bad_words=["\n", " "]))
    newline, space = (
        tuple(TOKENIZER.encode(word, add_special_tokens=False)) for word in ("\n", " ")
    )
    assert set(request.request.bad_words_token_ids) >= {newline, space}
    only_newline = engine.prepare(call("b", detokenize=True, bad_words=["\n"]))
    assert space not in only_newline.request.bad_words_token_ids


def test_parameters_are_checked_once_for_all_samples_and_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the event loop's thread: 256 bad words, or 262,144 token ids, took seconds for 256 prompts
    or samples.
    """
    engine = LLMEngine(FakeExecutor(), TOKENIZER)
    encoded: list[str] = []
    made: list[SamplingParams] = []
    check = SamplingParams.__post_init__

    def encode_all(_: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        encoded.extend(texts)
        return [[1] for _ in texts]

    def counted(params: SamplingParams) -> None:
        made.append(params)
        check(params)

    monkeypatch.setattr(Tokenizer, "encode_all", encode_all)
    first = call("a", detokenize=True, bad_words=["x", "y"], prompt_logprobs=1, n=16)
    monkeypatch.setattr(SamplingParams, "__post_init__", counted)
    samples = make_requests(engine.prepare(first))
    assert len(encoded) == 6  # as written, at the start of a text, and after a space
    assert {sample.spec.bad_words_token_ids for sample in samples} == {((1,),)}
    assert [sample.params.prompt_logprobs for sample in samples] == [1] + [None] * 15
    engine.prepare(replace(first, request_id="b", prompt_token_ids=[4, 5]))
    assert (len(encoded), len(made)) == (6, 1)
    engine.prepare(call("none", detokenize=True))
    engine.prepare(call("same", detokenize=True, bad_words=["x", "y"]))
    assert len(encoded) == 6
    engine.prepare(call("c", detokenize=True, bad_words=["x", "z"]))
    assert len(encoded) == 12


def test_without_max_tokens_an_answer_may_fill_context_or_cache() -> None:
    engine = LLMEngine(FakeExecutor(num_blocks=8))  # 32 slots, context 128
    engine.submit(call("a", max_tokens=None))
    tokens = sum(len(output.token_ids) for output in finish(engine)["a"])
    assert tokens == 32 - 3


def test_a_prompt_is_copied() -> None:
    """What the caller does to its list after validation reaches no request."""
    engine, prompt = LLMEngine(FakeExecutor()), [1, 2, 3]
    message = engine.prepare(call("a", prompt))
    prompt.append(VOCAB)
    assert message.request.prompt_token_ids == [1, 2, 3]


def test_a_refusal_for_the_caches_size_changes_no_later_seed() -> None:
    """The same calls draw the same tokens, however large the cache is."""
    seeds = []
    for num_blocks in (4, 64):
        config = EngineConfig(model=ModelOptions(seed=3))
        engine = LLMEngine(FakeExecutor(num_blocks), config=config)
        with suppress(RequestTooLargeError):
            engine.prepare(call("large", [1] * 30))
        seeds.append(engine.prepare(call("small")).request.seed)
    assert seeds[0] == seeds[1]


def test_the_operators_limit_bounds_every_answer() -> None:
    """However long an answer the call asks for, and however little the context leaves."""
    executor = FakeExecutor()
    executor.info = replace(executor.info, max_new_tokens=3)
    engine = LLMEngine(executor)
    for max_tokens in (None, 2, 1000):
        engine.submit(call(f"{max_tokens}", max_tokens=max_tokens))
    engine.submit(call("full", [1] * 126, max_tokens=None))
    lengths = {
        name: sum(len(output.token_ids) for output in outputs)
        for name, outputs in finish(engine).items()
    }
    assert lengths == {"None": 3, "2": 2, "1000": 3, "full": 2}
