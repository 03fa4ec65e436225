"""Protects: an answer whose engine is lost goes on in another one, and no byte of it is another.

Two engines with the real pilot. The first is stopped after each of its steps in turn, and the
second gets what a client of the first has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any, NamedTuple

import pytest

from tests import wire
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.engine.clients.answer_so_far import AnswerSoFar
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import AddRequest
from twostroke.startup import load_engine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 24},
    "drawn, with penalties": {
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 24,
        "presence_penalty": 0.7,
        "repetition_penalty": 1.2,
        "bad_words": ["the"],
        "logprobs": 2,
    },
    "stop strings": {
        "temperature": 0.8,
        "seed": 5,
        "max_tokens": 60,
        "stop": [". ", "and a"],
        "min_tokens": 4,
    },
    "schema": {
        "temperature": 0.9,
        "seed": 4,
        "max_tokens": 60,
        "structured_outputs": StructuredOutputsParams(json=SCHEMA),
    },
    "three samples": {"temperature": 1.0, "seed": 6, "n": 3, "max_tokens": 16, "stop": ["er"]},
    "the prompt's log-probabilities": {"temperature": 0.0, "max_tokens": 6, "prompt_logprobs": 1},
}
FIXED = '{"method": "ngram", "num_speculative_tokens": 4, "adaptive": false, "min_match": 1}'
PROMPT = "One day a small boat came to the river and "


class Answer(NamedTuple):
    """What a client has got of one sample."""

    text: str
    tokens: list[int]
    logprobs: list[Any]
    prompt_logprobs: list[Any]
    end: tuple[Any, Any]
    cached: set[int]


@pytest.fixture(scope="module", params=["plain", "drafts"])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[LLMEngine, LLMEngine]]:
    """Small steps, so that prompts are computed in several."""
    options: dict[str, Any] = {
        "max_model_len": 512,
        "kv_cache_memory": 2**24,
        "max_num_batched_tokens": 8,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    if request.param == "drafts":
        options |= {"speculative_config": FIXED}
    config = EngineConfig.from_flat(options)
    with closing(load_engine(config)) as first, closing(load_engine(config)) as second:
        yield first, second


@pytest.mark.parametrize("case", CASES)
def test_whenever_an_engine_is_lost_the_answer_is_the_same(
    engines: tuple[LLMEngine, LLMEngine], case: str
) -> None:
    first, second = engines
    expected, num_steps = run(first, call(first, "all", case))
    num_resumed = 0
    for lost_after in range(num_steps):
        message = call(first, f"lost-{lost_after}", case)
        so_far = AnswerSoFar(message)
        outputs: list[RequestOutput] = []
        first.add(message)
        for _ in range(lost_after):
            outputs += first.step()
        for output in outputs:
            so_far.note(output)
        first.abort(message.request_id)
        resumed = wire.decode(wire.encode(so_far.resume()), AddRequest)
        assert resumed.resumed is not None
        if not resumed.resumed:  # a mask was there sooner than in the first run
            continue
        num_resumed += any(sample.token_ids for sample in resumed.resumed)
        answers, _ = run(second, resumed, so_far, outputs)
        assert answers == expected, f"lost after step {lost_after} of {num_steps}"
    assert num_resumed > 2


def call(engine: LLMEngine, request_id: str, case: str) -> AddRequest:
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    prompt = tokenizer.encode(PROMPT)
    params = SamplingParams(**CASES[case])
    return engine.prepare(
        GenerationRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
    )


def run(
    engine: LLMEngine,
    message: AddRequest,
    so_far: AnswerSoFar | None = None,
    outputs: list[RequestOutput] | None = None,
) -> tuple[dict[int, Answer], int]:
    """All that the client gets, and in how many steps."""
    outputs = list(outputs or ())
    engine.add(message)
    for num_steps in count(1):
        new = engine.step()
        for output in new:
            if so_far is not None:
                so_far.note(output)
        outputs += new
        if not engine.has_work():
            break
        assert num_steps < 500
    return {
        index: answer_of(outputs, index) for index in range(message.request.params.n)
    }, num_steps


def answer_of(outputs: list[RequestOutput], index: int) -> Answer:
    own = [output for output in outputs if output.index == index]
    assert [output.finished for output in own] == [False] * (len(own) - 1) + [True]
    return Answer(
        "".join(output.text for output in own),
        [token for output in own for token in output.token_ids],
        [each for output in own for each in output.logprobs or ()],
        [each for output in own for each in output.prompt_logprobs or ()],
        (own[-1].finish_reason, own[-1].stop_reason),
        {output.num_cached_tokens for output in own},
    )
