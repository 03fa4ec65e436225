"""Protects: a model with recurrent layers answers as a plain loop does, whatever is taken back:
drafts that are rejected, draws that are repeated for a late mask.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints import write_checkpoint
from tests.engine.exactness import test_structured_exactness as structured
from tests.engine.exactness.test_exactness import Call, naive_answer
from tests.engine.exactness.test_exactness import run as run_calls
from tests.engine.exactness.test_speculation_mixes import Answer, calls, naive_tokens, run
from tests.models.tiny_families import FAMILIES
from tests.proposers import GUESSING, Guessing, ScriptedProposer
from tests.runtime.constraints.late_masks import late_masks
from tests.server.tiny import VOCAB, checkpoint
from tests.text.tiny_tokenizers import byte_level
from twostroke.core.config import EngineConfig
from twostroke.core.errors import ConfigError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kv_cache.state_slots import StateSlots
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.scheduling.speculation import FixedDepth
from twostroke.text.tokenizer import Tokenizer

SMALL = {"vocab_size": VOCAB, "eos_token_id": 0, "max_position_embeddings": 128}


@cache
def hybrid() -> Path:
    """Gated delta layers and one with gated attention."""
    raw = FAMILIES["qwen3.5"] | SMALL | {"num_hidden_layers": 4}
    return write_checkpoint(Path(mkdtemp()) / "hybrid", raw)


def make_engine(kv_cache_memory: int, **options: Any) -> LLMEngine:
    flat = {
        "model": str(hybrid()),
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 72,
        "block_size": 8,
        "max_num_seqs": 4,
        "kv_cache_memory": kv_cache_memory,
    }
    config = EngineConfig.from_flat(flat | options)
    return LLMEngine(load_torch_executor(config), Tokenizer(byte_level()), config)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=calls(),
    method=st.sampled_from(["ngram", "suffix", "draft"]),
    depth=st.integers(1, 6),
    adaptive=st.booleans(),
    budget=st.sampled_from([4, 16, 256]),
    memory=st.sampled_from([160_000, 250_000, 10**6]),
    caching=st.booleans(),
)
def test_drafts_change_no_answer(
    calls: list[Call],
    method: str,
    depth: int,
    adaptive: bool,
    budget: int,
    memory: int,
    caching: bool,
) -> None:
    wanted: dict[str, Any] = {"method": method, "num_speculative_tokens": depth}
    if method == "draft":
        wanted["model"] = str(checkpoint())
    engine = make_engine(
        memory,
        speculative_config=wanted | {"adaptive": adaptive},
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    answers = run(engine, calls)
    engine.scheduler.kv.check_integrity()
    for call in calls:
        for index in range(call.request.params.n):
            answer = answers.get((call.request.request_id, index), Answer())
            expected = naive_tokens(engine, call.request, index)
            assert answer.tokens == expected[: len(answer.tokens)], (method, call.request)
            if call.abort_at is None and not call.request.params.stop:
                assert answer.tokens == expected


@pytest.mark.parametrize("guessing", GUESSING)
def test_drafts_that_are_accepted_leave_the_state_after_them(guessing: Guessing) -> None:
    """All right, three in four, none: three answers at once, with samples of one of them."""
    engine = make_engine(10**6)
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    asked = [
        GenerationRequest(
            request_id=str(seed),
            prompt_token_ids=[5, 6, 7, 8, seed] * 4,
            params=SamplingParams(max_tokens=24, temperature=0.8, seed=seed, ignore_eos=True),
        )
        for seed in range(3)
    ]
    expected = {request.request_id: naive_tokens(engine, request, 0) for request in asked}
    proposer = ScriptedProposer(expected, guessing, VOCAB)
    executor.hooks.insert(0, ProposedDrafts(proposer))
    engine.scheduler.depth = FixedDepth(4)
    for turn in range(2):  # the second time after a prefix hit
        answers = run(engine, [Call(0, request, None) for request in asked])
        assert {name: answer.tokens for (name, _), answer in answers.items()} == expected
        if turn:
            assert engine.scheduler.kv.prefix_hits >= 3 * 16
    assert proposer.num_drafted > 0
    states = engine.scheduler.kv.states
    assert isinstance(states, StateSlots) and states.pool.num_free == states.num_slots


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    calls=structured.calls(),
    late=st.none() | st.integers(0, 99),
    budget=st.sampled_from([8, 64]),
    speculation=st.sampled_from([None, "ngram"]),
)
def test_a_late_mask_advances_no_state_twice(
    calls: list[Call], late: int | None, budget: int, speculation: str | None
) -> None:
    engine = structured.make_engine(
        model=str(hybrid()),
        kv_cache_memory=10**6,
        max_num_batched_tokens=budget,
        speculation=speculation,
    )
    with nullcontext() if late is None else late_masks(late):
        outputs = run_calls(engine, calls)
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    for call in calls:
        for index in range(call.request.params.n):
            key = call.request.request_id, index
            tokens, reason = outputs.get(key, ([], FinishReason.ABORT))
            constraint = structured.constraint_of(call.request)
            expected, expected_reason = naive_answer(executor, call.request, index, constraint)
            if reason is FinishReason.ABORT:
                expected, expected_reason = expected[: len(tokens)], FinishReason.ABORT
            assert (tokens, reason) == (expected, expected_reason), key


def test_a_draft_model_with_recurrent_layers_is_refused() -> None:
    settings = {"method": "draft", "model": str(hybrid())}
    with pytest.raises(ConfigError, match=r"draft model .*hybrid has recurrent layers"):
        make_engine(10**6, speculative_config=settings)
