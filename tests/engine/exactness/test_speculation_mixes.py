"""Protects: whatever guesses, and however far, every request is answered as without guessing, also
where its text decides when it ends.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.exactness.test_exactness import Call, outputs_of
from tests.server.tiny import VOCAB, checkpoint
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.sampling.random import derive_seed
from twostroke.text.tokenizer import Tokenizer

BLOCK = 8
STOPS: list[list[str]] = [[], [], ["a"], ["th", "o"], ["e", "in", "0"], [" "]]


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Few likely tokens where it is drawn: see ``test_speculation.few_likely``."""
    temperature = draw(st.sampled_from([0.0, 0.0, 0.7, 1.5]))
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 2])),
        temperature=temperature,
        top_k=5 if temperature else 0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.2])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        bad_words=draw(st.sampled_from([[], ["e"], ["th"]])),
        logprobs=draw(st.sampled_from([None, 1])),
        seed=draw(st.integers(0, 2**32)),
        max_tokens=draw(st.integers(1, 40)),
        min_tokens=draw(st.sampled_from([0, 0, 1])),
        stop=draw(st.sampled_from(STOPS)),
        include_stop_str_in_output=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        speculation=draw(st.sampled_from([None, None, None, 0, 1, 3])),
    )


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    """Prompts that repeat themselves, and share beginnings: there is something to quote."""
    random = Random(draw(st.integers(0, 2**32)))
    phrase = [random.randrange(VOCAB) for _ in range(5)]
    made = []
    for number in range(draw(st.integers(1, 5))):
        fresh = [random.randrange(VOCAB) for _ in range(random.randrange(1, 12))]
        request = GenerationRequest(
            request_id=str(number),
            prompt_token_ids=phrase * random.randrange(4) + fresh,
            params=draw(params()),
            prediction_token_ids=random.choice([[], phrase * 3]),
            tenant=random.choice(["alice", "bob"]),
        )
        abort_at = random.randrange(15) if random.random() < 0.15 else None
        made.append(Call(random.randrange(8), request, abort_at))
    return made


class Answer:
    """All that a client gets of one sample."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.chosen: list[int] = []
        self.reason: FinishReason | None = None
        self.stop_reason: int | str | None = None

    def add(self, output: RequestOutput) -> None:
        assert output.error is None
        self.tokens += output.token_ids
        self.text += output.text
        self.chosen += [position.chosen.token_id for position in _scores(output)]
        self.reason, self.stop_reason = output.finish_reason, output.stop_reason

    def whole(self) -> tuple[object, ...]:
        return self.tokens, self.text, self.chosen, self.reason, self.stop_reason


def _scores(output: RequestOutput) -> list[PositionLogprobs]:
    return list(output.logprobs or ())


def make_engine(num_blocks: int, **options: Any) -> LLMEngine:
    kv_bytes = num_blocks * BLOCK * 2 * 2 * 2 * 8 * 4
    config = EngineConfig.from_flat(
        {
            "model": str(checkpoint()),
            "dtype": "float32",
            "device": "cpu",
            "max_model_len": 72,
            "block_size": BLOCK,
            "max_num_seqs": 4,
            "kv_cache_memory": kv_bytes * (2 if "draft" in str(options) else 1),
            **options,
        }
    )
    executor = load_torch_executor(config)
    assert executor.info.num_blocks == num_blocks
    return LLMEngine(executor, Tokenizer(byte_level()), config)


def run(engine: LLMEngine, calls: list[Call]) -> dict[tuple[str, int], Answer]:
    """What each answer got."""
    answers: dict[tuple[str, int], Answer] = {}
    for output in outputs_of(engine, calls, 1000):
        answers.setdefault((output.request_id, output.index), Answer()).add(output)
    return answers


def naive_tokens(engine: LLMEngine, request: GenerationRequest, index: int) -> list[int]:
    """What the reference without a cache draws; stop strings are text, and not looked at there."""
    assert isinstance(engine.executor, TorchExecutor)
    prepared = engine.prepare(request)
    tokens, _ = generate_naive(
        engine.executor.model,
        request.prompt_token_ids,
        request.params,
        seed=derive_seed(request.params.seed or 0, index),
        eos_token_ids=engine.info.eos_token_ids,
        max_total_tokens=len(request.prompt_token_ids) + (request.params.max_tokens or 0),
        bad_words_token_ids=prepared.request.bad_words_token_ids,
    )
    return tokens


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=calls(),
    method=st.sampled_from(["ngram", "suffix", "draft", "early-exit"]),
    depth=st.integers(1, 6),
    adaptive=st.booleans(),
    budget=st.sampled_from([4, 16, 256]),
    chunk=st.none() | st.just(5),
    num_blocks=st.sampled_from([9, 12, 40]),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "fair"]),
)
def test_every_mix_is_answered_as_without_guesses(
    calls: list[Call],
    method: str,
    depth: int,
    adaptive: bool,
    budget: int,
    chunk: int | None,
    num_blocks: int,
    caching: bool,
    policy: str,
) -> None:
    """Tokens, text, stop strings, scores and reasons; and the tokens are the reference's."""
    shared = {
        "max_num_batched_tokens": budget,
        "max_prefill_chunk": chunk,
        "enable_prefix_caching": caching,
        "policy": policy,
    }
    settings: dict[str, Any] = {"method": method, "num_speculative_tokens": depth}
    if method == "draft":
        settings["model"] = str(checkpoint())
    plain = make_engine(num_blocks, **shared)
    expected = run(plain, calls)
    engine = make_engine(num_blocks, speculative_config=settings | {"adaptive": adaptive}, **shared)
    answers = run(engine, calls)
    for call in calls:
        for index in range(call.request.params.n):
            key = call.request.request_id, index
            without, answer = expected.get(key, Answer()), answers.get(key, Answer())
            if call.abort_at is None:
                assert answer.whole() == without.whole(), f"{method}, request {key}"
            naive = naive_tokens(plain, call.request, index)
            for tokens in (without.tokens, answer.tokens):
                assert tokens == naive[: len(tokens)], f"{method}, request {key}"
