"""A cache of few bits changes no promise: a token's keys and values are rounded once, when they
are written, so an output depends on neither batch, chunks, preemption, prefix hits nor drafts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.checkpoints import tiny_config, write_checkpoint
from tests.engine.exactness.test_exactness import Call, calls, run
from tests.instruction_sets import selected
from twostroke import LLM
from twostroke.core.config import EngineConfig
from twostroke.core.kv_formats import KVCacheDtype
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor

BLOCK_SIZE = 8
# 2 layers, keys and values, 2 KV heads of 32 elements and their scale.
BYTES_PER_TOKEN: dict[KVCacheDtype, int] = {
    "int8": 2 * 2 * 2 * 34,
    "int4": 2 * 2 * 2 * 18,
    "fp8": 2 * 2 * 2 * 32,
}
Outputs = dict[tuple[str, int], tuple[list[int], FinishReason | None]]


@cache
def checkpoint() -> Path:
    raw = tiny_config("qwen3", head_dim=32, tie_word_embeddings=True)
    return write_checkpoint(Path(mkdtemp()) / "tiny", raw)


def load(name: KVCacheDtype, **options: Any) -> TorchExecutor:
    wanted = {
        "model": str(checkpoint()),
        "device": "cpu",
        "dtype": "bfloat16",
        "max_model_len": 64,
        "block_size": BLOCK_SIZE,
        "kv_cache_memory": 2**21,
        "kv_cache_dtype": name,
        **options,
    }
    return load_torch_executor(EngineConfig.from_flat(wanted))


def outputs_of(made: list[Call], name: KVCacheDtype, **options: Any) -> Outputs:
    executor = load(name, **options)
    wanted = {key: value for key, value in options.items() if key != "kv_cache_memory"}
    config = EngineConfig.from_flat({"model": str(checkpoint()), "max_model_len": 64, **wanted})
    try:
        return run(LLMEngine(executor, config=config), made)
    finally:
        executor.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    made=calls(),
    name=st.sampled_from(["int8", "int4", "fp8"]),
    budget=st.sampled_from([5, 16, 256]),
    chunk=st.none() | st.sampled_from([3, 8]),
    max_num_seqs=st.sampled_from([3, 8]),
    num_blocks=st.sampled_from([8, 12, 40]),
    caching=st.booleans(),
    guessing=st.sampled_from([None, "ngram", "early-exit"]),
    instruction_set=st.sampled_from(["avx512", "avx2", "generic"]),
)
def test_company_chunks_preemption_hits_and_drafts_change_no_token(
    made: list[Call],
    name: KVCacheDtype,
    budget: int,
    chunk: int | None,
    max_num_seqs: int,
    num_blocks: int,
    caching: bool,
    guessing: str | None,
    instruction_set: str,
) -> None:
    """Bit for bit in bfloat16 with the compiled kernels: against one after the other, whole."""
    with selected(instruction_set) as there:
        assume(there)
        per_token = BYTES_PER_TOKEN[name]
        speculative = guessing and {
            "method": guessing,
            "num_speculative_tokens": 3,
            "adaptive": False,
        }
        mixed = outputs_of(
            made,
            name,
            max_num_batched_tokens=budget,
            max_prefill_chunk=chunk,
            max_num_seqs=max_num_seqs,
            kv_cache_memory=num_blocks * BLOCK_SIZE * per_token,
            block_size=BLOCK_SIZE,
            enable_prefix_caching=caching,
            speculative_config=speculative,
        )
        one_by_one = [Call(0, call.request, None) for call in made]
        alone = outputs_of(one_by_one, name, max_num_seqs=1, enable_prefix_caching=False)
    for key, (expected, reason) in alone.items():
        tokens, ended = mixed.get(key, ([], FinishReason.ABORT))
        if ended is FinishReason.ABORT:
            expected, reason = expected[: len(tokens)], FinishReason.ABORT
        assert (tokens, ended) == (expected, reason), f"{name}, request {key}"


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_pilot_answers_as_the_plain_form(name: KVCacheDtype) -> None:
    """Greedy answers of several chats in chunks equal a loop that rounds keys and values and keeps
    no cache.
    """
    with LLM(
        "pilot",
        dtype="float32",
        device="cpu",
        kv_cache_dtype=name,
        max_num_batched_tokens=16,
        kv_cache_memory=2**23,
        max_model_len=256,
    ) as llm:
        prompts = [
            llm.chat_prompt([{"role": "user", "content": question}])
            for question in ("What is prefill?", "what is a kv cache", "Hello!")
        ]
        wanted = SamplingParams(temperature=0, max_tokens=12)
        results = llm.generate(prompts, wanted)
        executor = llm.engine.executor
        assert isinstance(executor, TorchExecutor)
        assert executor.info.kv_cache_dtype == name == executor.kv.format
        for prompt, result in zip(prompts, results, strict=True):
            expected, _ = generate_naive(
                executor.model,
                prompt,
                wanted,
                eos_token_ids=llm.engine.info.eos_token_ids,
                layout=executor.kv.layouts[0].tensors[0],
            )
            assert result.outputs[0].token_ids == expected


@pytest.mark.parametrize("name", ["int8", "int4", "fp8"])
def test_the_compiled_pass_writes_what_the_plain_form_writes(name: KVCacheDtype) -> None:
    """Bit for bit, on the same keys and values: the pass in one call against layers one by one."""
    blocks = []
    for compiled in (True, False):
        executor = load(name)
        assert executor.model.compiled_pass is not None
        if not compiled:
            executor.model.compiled_pass = None
        request = Call(0, _greedy([5, 9, 2, 7, 7, 30, 41, 3, 9, 22, 64]), None)
        run(LLMEngine(executor, config=EngineConfig.from_flat({"model": "tiny"})), [request])
        blocks.append([cache.clone() for cache in (executor.kv.keys[0], executor.kv.values[0])])
    for left, right in zip(*blocks):
        assert bool(left.view(torch.uint8).any())
        assert torch.equal(left.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.parametrize(("name", "at_least"), [("int8", 1.9), ("int4", 3.5), ("fp8", 2.0)])
def test_the_pool_holds_more_tokens_in_the_same_bytes(name: KVCacheDtype, at_least: float) -> None:
    """pilot's heads have 64 elements; scales are counted."""
    options = {"model": "pilot", "device": "cpu", "kv_cache_memory": 2**23, "max_model_len": 256}
    config = {**options, "dtype": "bfloat16"}
    plain = load_torch_executor(EngineConfig.from_flat(config))
    scaled = load_torch_executor(EngineConfig.from_flat({**config, "kv_cache_dtype": name}))
    assert scaled.info.num_blocks / plain.info.num_blocks >= at_least
    allocated = sum(cache.nbytes for cache in (*scaled.kv.keys, *scaled.kv.values))
    assert 0.99 * 2**23 < allocated <= 2**23


def _greedy(prompt: list[int]) -> Any:
    from twostroke.core.generation_request import GenerationRequest

    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    return GenerationRequest(request_id="0", prompt_token_ids=prompt, params=params)
