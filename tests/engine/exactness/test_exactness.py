"""The promise of the project: whatever else runs, each request's output is what a loop without a
cache gives it.

A real model in float32 (random weights, tiny), the real engine, and ``generate_naive`` as the
reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.checkpoints import LLAMA3_ROPE, TINY, tiny_config, write_checkpoint
from tests.instruction_sets import INSTRUCTION_SETS, selected
from tests.proposers import GUESSING, Guessing, ScriptedProposer
from tests.spec_decode.heads import head_tensors, write_heads
from twostroke.constraints.constraint import Constraint
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.sampling.random import derive_seed
from twostroke.scheduling.speculation import FixedDepth
from twostroke.spec_decode.base import Proposer
from twostroke.spec_decode.ngram import NgramProposer
from twostroke.spec_decode.suffix import SuffixOptions, SuffixProposer

VOCAB = 96
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": LLAMA3_ROPE},
    "mistral": {
        "sliding_window": 9,
        "head_dim": 16,
    },  # 16 and up: the compiled attention takes part
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
}


@cache
def checkpoint(family: str) -> Path:
    raw = tiny_config(family, **FAMILIES[family])
    return write_checkpoint(Path(mkdtemp()) / family, raw)


@cache
def heads() -> Path:
    """Half of them guess the latest token again, which is right now and then."""
    tensors = head_tensors(TINY["hidden_size"], num_heads=4)
    zeros = {n: t.zero_() if n[0] in "02" else t for n, t in tensors.items()}
    return write_heads(Path(mkdtemp()) / "heads", zeros)


@dataclass
class Call:
    """One client's request and when it comes (before which step), and when it is aborted, if it
    is.
    """

    step: int
    request: GenerationRequest
    abort_at: int | None


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    sampled = draw(st.booleans())
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 3])),
        temperature=draw(st.sampled_from([0.7, 1.0, 1.5])) if sampled else 0.0,
        top_k=draw(st.sampled_from([0, 5, 40])) if sampled else 0,
        top_p=draw(st.sampled_from([0.6, 1.0])) if sampled else 1.0,
        min_p=draw(st.sampled_from([0.0, 0.1])) if sampled else 0.0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5])),
        logit_bias=draw(st.sampled_from([{}, {3: 5.0, 7: -5.0}])),
        banned_token_ids=draw(st.sampled_from([(), (1, 5, 9)])),
        logprobs=draw(st.sampled_from([None, 2])),
        seed=draw(st.integers(0, 2**64 - 1)),
        max_tokens=draw(st.integers(1, 14)),
        min_tokens=draw(st.sampled_from([0, 0, 1])),
        stop_token_ids=tuple(draw(st.sets(st.integers(0, VOCAB - 1), max_size=3))),
        ignore_eos=draw(st.booleans()),
        detokenize=False,
        speculation=draw(st.sampled_from([None, None, None, 0, 2])),
    )


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    random = Random(draw(st.integers(0, 2**32)))
    shared = [random.randrange(VOCAB) for _ in range(24)]
    made = []
    for number in range(draw(st.integers(1, 7))):
        prompt = shared[: random.choice([0, 8, 24])] + [
            random.randrange(VOCAB) for _ in range(random.randrange(1, 20))
        ]
        request = GenerationRequest(
            request_id=str(number),
            prompt_token_ids=prompt,
            params=draw(params()),
            priority=random.randrange(3),
            cache_salt=random.choice(["", "", "tenant"]),
            tenant=random.choice(["alice", "bob"]),
        )
        abort_at = random.randrange(12) if random.random() < 0.15 else None
        made.append(Call(random.randrange(10), request, abort_at))
    return made


def outputs_of(engine: LLMEngine, calls: list[Call], max_steps: int) -> Iterator[RequestOutput]:
    """Drive the engine through the calls; its block tables are checked after every step."""
    for step in range(max_steps):
        for call in calls:
            if call.step == step:
                engine.submit(call.request)
        outputs = engine.step() if engine.has_work() else []
        for call in calls:
            if call.abort_at == step:
                outputs += engine.abort(call.request.request_id)
        yield from outputs
        engine.scheduler.kv.check_integrity()
        if step > 10 and not engine.has_work():
            break
    assert engine.scheduler.kv.pool.num_free == engine.scheduler.kv.pool.num_blocks


def run(
    engine: LLMEngine, calls: list[Call]
) -> dict[tuple[str, int], tuple[list[int], FinishReason | None]]:
    """Tokens and end of each answer."""
    got: dict[tuple[str, int], tuple[list[int], FinishReason | None]] = {}
    for output in outputs_of(engine, calls, 2000):
        assert output.error is None
        tokens, _ = got.get((output.request_id, output.index), ([], None))
        if output.logprobs is not None:
            assert [position.chosen.token_id for position in output.logprobs] == output.token_ids
        got[output.request_id, output.index] = (tokens + output.token_ids, output.finish_reason)
    assert not engine.has_work()
    return got


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    calls=calls(),
    budget=st.sampled_from([1, 5, 16, 64, 256]),
    chunk=st.none() | st.sampled_from([3, 8]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    num_blocks=st.sampled_from([8, 9, 12, 40]),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority", "fair"]),
    batching=st.sampled_from(["continuous", "continuous", "static"]),
    instruction_set=st.sampled_from(INSTRUCTION_SETS),
    guessing=st.sampled_from(
        [None, "n-gram", "suffix", "draft", "early-exit", "medusa", *GUESSING]
    ),
    depth=st.integers(1, 7),
    needs_slots=st.booleans(),
)
def test_every_output_equals_the_reference_without_a_cache(
    family: str,
    calls: list[Call],
    budget: int,
    chunk: int | None,
    max_num_seqs: int,
    num_blocks: int,
    caching: bool,
    policy: str,
    batching: str,
    instruction_set: str,
    guessing: str | None,
    depth: int,
    needs_slots: bool,
) -> None:
    """Random mixes of prompts, parameters, budgets, chunks, policies, prefixes, samples, scarce
    blocks, aborts, and of drafts: right, wrong, or both.
    """
    block_size = 8
    config = EngineConfig.from_flat(
        {
            "model": str(checkpoint(family)),
            "device": "cpu",
            "max_model_len": 64,
            "max_num_batched_tokens": budget,
            "max_prefill_chunk": chunk,
            "max_num_seqs": max_num_seqs,
            "block_size": block_size,
            "kv_cache_memory": num_blocks
            * block_size
            * 2
            * 2
            * 2
            * FAMILIES[family].get("head_dim", 8)
            * 4
            * (2 if guessing == "draft" else 1),
            "enable_prefix_caching": caching,
            "policy": policy,
            "batching": batching,
            "speculative_config": speculative_config(family, guessing, depth),
        }
    )
    with selected(instruction_set) as there:
        assume(there)
        executor = load_torch_executor(config)
        assert executor.info.num_blocks == num_blocks
        answers = {
            (call.request.request_id, index): naive_answer(executor, call.request, index)
            for call in calls
            for index in range(call.request.params.n)
        }
        engine = LLMEngine(executor, config=config)
        if guessing is not None and not any(
            isinstance(hook, ProposedDrafts) for hook in executor.hooks
        ):
            engine.scheduler.depth = FixedDepth(depth, needs_slots=needs_slots)
            executor.hooks.insert(0, ProposedDrafts(make_proposer(guessing, calls, answers)))
        outputs = run(engine, calls)
    for key, (expected, expected_reason) in answers.items():
        tokens, reason = outputs.get(key, ([], FinishReason.ABORT))
        if reason is FinishReason.ABORT:
            expected, expected_reason = expected[: len(tokens)], FinishReason.ABORT
        assert (tokens, reason) == (expected, expected_reason), f"{family}, request {key}"


def speculative_config(family: str, guessing: str | None, depth: int) -> dict[str, Any] | None:
    """Where a model drafts: heads, the first of its two layers, or the model as its own draft."""
    settings: dict[str, Any] = {"num_speculative_tokens": depth, "adaptive": False}
    if guessing == "draft":
        return settings | {"method": "draft", "model": str(checkpoint(family))}
    if guessing == "medusa":
        return settings | {"method": "medusa", "model": str(heads())}
    return settings | {"method": "early-exit"} if guessing == "early-exit" else None


def make_proposer(
    guessing: str, calls: list[Call], answers: Mapping[tuple[str, int], tuple[list[int], object]]
) -> Proposer:
    if guessing == "n-gram":
        return NgramProposer(min_match=1)
    if guessing == "suffix":
        return SuffixProposer(SuffixOptions(max_factor=4.0))
    known = {}
    for request in (call.request for call in calls):
        for index in range(request.params.n):
            name = request.request_id if request.params.n == 1 else f"{request.request_id}#{index}"
            known[name], _ = answers[request.request_id, index]
    return ScriptedProposer(known, cast(Guessing, guessing), VOCAB)


def naive_answer(
    executor: TorchExecutor,
    request: GenerationRequest,
    index: int,
    constraint: Constraint | None = None,
) -> tuple[list[int], FinishReason]:
    """What the reference without a cache answers."""
    return generate_naive(
        executor.model,
        request.prompt_token_ids,
        request.params,
        seed=derive_seed(request.params.seed or 0, index),
        eos_token_ids=executor.info.eos_token_ids,
        max_total_tokens=len(request.prompt_token_ids) + (request.params.max_tokens or 0),
        constraint=constraint,
    )


@pytest.mark.parametrize("model", ["pilot"])
def test_the_embedded_model_answers_the_same_in_any_company(model: str) -> None:
    """pilot in float32: greedy answers to chats run together, in chunks, equal each one alone
    without a cache.
    """
    from twostroke import LLM

    questions = ["What is prefill?", "what is a kv cache", "Hello!", "Why is decode slow?"]
    with LLM(
        model,
        dtype="float32",
        device="cpu",
        max_num_batched_tokens=16,
        kv_cache_memory=2**24,
        max_model_len=512,
    ) as llm:
        prompts = [
            llm.chat_prompt([{"role": "user", "content": question}]) for question in questions
        ]
        wanted = SamplingParams(temperature=0, max_tokens=24)
        results = llm.generate(prompts, wanted)
        assert isinstance(llm.engine.executor, TorchExecutor)
        for prompt, result in zip(prompts, results, strict=True):
            expected, _ = generate_naive(
                llm.engine.executor.model,
                prompt,
                wanted,
                eos_token_ids=llm.engine.info.eos_token_ids,
            )
            assert result.outputs[0].token_ids == expected
