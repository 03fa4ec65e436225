"""Protects: an engine that speculates answers as one that does not, and counts its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests.server.tiny import checkpoint
from tests.spec_decode.engines import answers, make_engine, metric
from tests.spec_decode.heads import head_tensors, write_heads
from twostroke import LLM
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.speculation_config import DepthChange
from twostroke.scheduling.speculation import FixedDepth

# Repeats itself, so that there is something to quote.
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def few_likely(**fields: Any) -> SamplingParams:
    """In float32 a pass of several rows rounds otherwise than one of a single row: where hundreds
    of tokens are likely, a draw lies near a boundary once in some thousand tokens."""
    return SamplingParams(**fields, top_k=5, detokenize=False)


@pytest.mark.parametrize("method", ["ngram", "suffix", "early-exit"])
def test_answers_are_the_same_in_fewer_passes(method: str) -> None:
    calls = [few_likely(max_tokens=60, temperature=t, seed=1) for t in (0, 1)]
    plain = make_engine()
    expected = answers(plain, PROMPT, calls)
    engine = make_engine(speculative_config={"method": method, "adaptive": False})
    assert answers(engine, PROMPT, calls) == expected
    assert answers(engine, PROMPT, calls) == expected
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") > 0
    shares = [sum(len(e.scheduled) for e in one.recorder.events(-1)) for one in (engine, plain)]
    assert shares[0] < 2 * shares[1]


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_requests", [1, 3])
def test_a_model_that_drafts_for_itself_is_always_right(
    num_requests: int, prefix_caching: bool
) -> None:
    """So its keys and values are those of the text at every step, prefix hits and all."""
    settings = {"method": "draft", "model": str(checkpoint()), "num_speculative_tokens": 3}
    settings["adaptive"] = False
    engine = make_engine(speculative_config=settings, enable_prefix_caching=prefix_caching)
    plain = make_engine()
    for turn in range(3):
        prompt = [*PROMPT, *range(turn), 9]
        params = [
            SamplingParams(max_tokens=42 + n, temperature=0, detokenize=False, ignore_eos=True)
            for n in range(num_requests)
        ]
        assert answers(engine, prompt, params) == answers(plain, prompt, params)
    drafted = metric(engine, "vllm:spec_decode_num_draft_tokens_total")
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") == drafted > 0


class Changing(FixedDepth):
    """Drafts now and then."""

    def __init__(self) -> None:
        super().__init__(4, needs_slots=True)
        self._depths = cycle([4, 0, 0, 2])

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        return next(self._depths)


def test_drafts_that_were_never_verified_spoil_nothing() -> None:
    """Between two drafted steps a request may take steps without: what was written ahead is then
    not what came."""
    settings = {"method": "draft", "model": str(checkpoint()), "num_speculative_tokens": 4}
    engine = make_engine(speculative_config=settings)
    params = [SamplingParams(max_tokens=60, temperature=0, detokenize=False, ignore_eos=True)]
    sampled = [replace(params[0], temperature=1.5, seed=7, top_k=5)]
    for one in (params, sampled):
        [expected] = answers(make_engine(), PROMPT, one)
        engine.scheduler.depth = Changing()
        assert answers(engine, PROMPT, one) == [expected]
    engine.scheduler.depth = FixedDepth(4, needs_slots=True)
    names = ("draft", "accepted")
    before = [metric(engine, f"vllm:spec_decode_num_{name}_tokens_total") for name in names]
    answers(engine, PROMPT, params)
    after = [metric(engine, f"vllm:spec_decode_num_{name}_tokens_total") for name in names]
    assert after[0] - before[0] == after[1] - before[1] > 0, "what is in the cache is wrong"


def test_metrics_and_events_count_the_same_drafts() -> None:
    engine = make_engine(speculative_config={"method": "ngram", "min_match": 1, "adaptive": False})
    params = SamplingParams(max_tokens=80, temperature=0, detokenize=False, ignore_eos=True)
    answers(engine, PROMPT, [params])
    shares = [share for event in engine.recorder.events(-1) for share in event.scheduled]
    drafted = [share for share in shares if share.num_drafts]
    assert drafted
    assert metric(engine, "vllm:spec_decode_num_drafts_total") == len(drafted)
    for name, total in (
        ("vllm:spec_decode_num_draft_tokens_total", sum(s.num_drafts for s in drafted)),
        ("vllm:spec_decode_num_accepted_tokens_total", sum(s.num_accepted_drafts for s in drafted)),
    ):
        assert metric(engine, name) == total
    for position in range(8):
        accepted = sum(share.num_accepted_drafts > position for share in drafted)
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert metric(engine, name, position=str(position)) == accepted
    for share in shares:
        assert share.num_new_tokens <= 1 + share.num_accepted_drafts


@pytest.mark.parametrize("method", ["ngram", "suffix", "early-exit"])
def test_the_depth_that_chooses_itself_changes_no_answer(method: str) -> None:
    calls = [
        few_likely(max_tokens=100, temperature=t, seed=s, ignore_eos=True)
        for s, t in enumerate((0, 0.5, 1.0, 0))
    ]
    engine = make_engine(speculation=method)
    expected = answers(make_engine(), PROMPT, calls)
    for _ in range(2):
        assert answers(engine, PROMPT, calls) == expected


@pytest.mark.parametrize("adaptive", [True, False])
def test_heads_change_no_answer(tmp_path: Path, adaptive: bool) -> None:
    """More are wanted than there are; those asked for beyond are not made."""
    heads = write_heads(tmp_path / "heads", head_tensors(32, 331, num_layers=2))
    settings = {"method": "medusa", "model": str(heads), "num_speculative_tokens": 5}
    engine = make_engine(speculative_config={**settings, "adaptive": adaptive})
    calls = [
        few_likely(max_tokens=60, temperature=t, seed=s, repetition_penalty=p)
        for t, s, p in ((0, 1, 1.0), (0.7, 2, 1.2), (1.0, 3, 1.0), (0, 4, 1.5))
    ]
    assert answers(engine, PROMPT, calls) == answers(make_engine(), PROMPT, calls)
    rounds = metric(engine, "vllm:spec_decode_num_drafts_total")
    drafted = metric(engine, "vllm:spec_decode_num_draft_tokens_total")
    assert 0 < rounds <= drafted <= 3 * rounds


def test_a_request_can_do_without() -> None:
    engine = make_engine(speculation="ngram")
    off = SamplingParams(max_tokens=40, temperature=0, detokenize=False, speculation=0)
    answers(engine, PROMPT, [off])
    assert metric(engine, "vllm:spec_decode_num_drafts_total") == 0


def test_a_prediction_makes_an_answer_sooner_and_not_another() -> None:
    params = [few_likely(max_tokens=50, temperature=1, seed=3)]
    plain = make_engine()
    [expected] = answers(plain, [1, 2, 3], params)
    engine = make_engine(speculative_config={"method": "ngram", "adaptive": False})
    assert answers(engine, [1, 2, 3], params, prediction=expected) == [expected]
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") > len(expected) // 2
    wrong = make_engine(speculation="ngram")
    assert answers(wrong, [1, 2, 3], params, prediction=expected[::-1]) == [expected]


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_synthetic_drafts_are_accepted_at_their_rate(rate: float) -> None:
    settings = {"method": "synthetic", "num_speculative_tokens": 3, "adaptive": False}
    settings["acceptance_rate"] = rate
    engine = make_engine(speculative_config=settings)
    params = [
        SamplingParams(max_tokens=200, temperature=0, seed=s, detokenize=False, ignore_eos=True)
        for s in range(4)
    ]
    tokens = answers(engine, [1, 2, 3], params)
    assert [len(answer) for answer in tokens] == [200] * 4
    rounds = metric(engine, "vllm:spec_decode_num_drafts_total")
    accepted = metric(engine, "vllm:spec_decode_num_accepted_tokens_total")
    assert accepted / rounds == pytest.approx(rate + rate**2 + rate**3, abs=0.25)


@pytest.fixture(scope="module")
def pilots() -> Iterator[dict[str, LLM]]:
    shared: dict[str, Any] = {"device": "cpu", "kv_cache_memory": 2**25, "max_model_len": 512}
    made = {"plain": LLM("pilot", **shared)}
    for method in ("ngram", "draft", "early-exit", "medusa"):
        settings = {"method": method, "num_speculative_tokens": 3, "adaptive": False}
        made[method] = LLM("pilot", **shared, speculative_config=settings)
    yield made
    for llm in made.values():
        llm.close()


def test_pilot_in_bfloat16_answers_bit_by_bit_the_same(pilots: dict[str, LLM]) -> None:
    """The compiled pass: rows of drafts beside rows of other requests."""
    questions = ["What is prefill?", "Why is decode slow?", "what is a kv cache", "Hello!"]
    prompt = [
        pilots["plain"].chat_prompt([{"role": "user", "content": question}])
        for question in questions
    ]
    params = [
        SamplingParams(temperature=t, seed=s, max_tokens=60, logprobs=1, repetition_penalty=p)
        for t, s, p in ((0.0, 1, 1.0), (0.7, 2, 1.0), (1.0, 3, 1.1), (1.3, 4, 1.0))
    ]
    results = {name: llm.generate(prompt, params) for name, llm in pilots.items()}
    for plain, *speculated in zip(*results.values(), strict=True):
        for other in speculated:
            assert plain.outputs[0].token_ids == other.outputs[0].token_ids
            assert plain.outputs[0].logprobs == other.outputs[0].logprobs
            assert plain.text == other.text
    for method, share in (("draft", 0.5), ("medusa", 0.2)):
        engine = pilots[method].engine
        drafted = metric(engine, "vllm:spec_decode_num_draft_tokens_total")
        assert metric(engine, "vllm:spec_decode_num_accepted_tokens_total") > share * drafted
