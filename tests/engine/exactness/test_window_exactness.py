"""Blocks that fell out of a window are given back, and no token changes.

Real models in float32 (random weights, tiny) against ``generate_naive``, with windows in all layers
(as Mistral) and in some (as Gemma 3 and gpt-oss).
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
from tests.engine.exactness.test_exactness import (
    VOCAB,
    Call,
    calls,
    make_proposer,
    naive_answer,
    run,
)
from tests.instruction_sets import selected
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.kv_groups import KVGroups
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.layers.linear import TorchLinear
from twostroke.models.decoder import Decoder
from twostroke.runtime.hooks.drafts import ProposedDrafts
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.runtime.torch_executor import TorchExecutor
from twostroke.scheduling.speculation import FixedDepth

MIXED = ["sliding_attention", "sliding_attention", "full_attention"]  # one of three, as Gemma
IN_TURN = ["sliding_attention", "full_attention"] * 2  # as gpt-oss
LAYERS: dict[str, list[str] | None] = {"all": None, "mixed": MIXED, "in turn": IN_TURN}


@cache
def checkpoint(kind: str, window: int, head_dim: int) -> Path:
    """Heads of 8 elements are computed by PyTorch, those of 32 by the compiled kernels."""
    kinds = LAYERS[kind]
    wanted: dict[str, Any] = {"sliding_window": window, "head_dim": head_dim}
    if kinds is None:
        raw = tiny_config("mistral", **wanted)
    else:
        wanted |= {"layer_types": kinds, "use_sliding_window": True}
        raw = tiny_config("qwen3", num_hidden_layers=len(kinds), **wanted)
    return write_checkpoint(Path(mkdtemp()) / "tiny", raw)


def load(kind: str, window: int, head_dim: int, **options: Any) -> LLMEngine:
    wanted = {
        "model": str(checkpoint(kind, window, head_dim)),
        "device": "cpu",
        "max_model_len": 64,
        "kv_cache_memory": 2**21,
        "block_size": 4,
        **options,
    }
    config = EngineConfig.from_flat(wanted)
    return LLMEngine(load_torch_executor(config), config=config)


def executor_of(engine: LLMEngine) -> TorchExecutor:
    assert isinstance(engine.executor, TorchExecutor)
    return engine.executor


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(LAYERS)),
    window=st.sampled_from([1, 5, 9, 16]),
    head_dim=st.sampled_from([8, 32]),
    calls=calls(),
    budget=st.sampled_from([4, 16, 64]),
    chunk=st.none() | st.sampled_from([3, 8]),
    max_num_seqs=st.sampled_from([1, 3, 8]),
    spare=st.sampled_from([0, 2, 9, 60]),
    caching=st.booleans(),
    preemption=st.sampled_from(["recompute", "swap"]),
    instruction_set=st.sampled_from(["avx512", "avx2", "generic"]),
    guessing=st.sampled_from([None, None, "n-gram", "half right", "draft", "early-exit"]),
    depth=st.integers(1, 5),
)
def test_every_output_equals_the_reference_without_a_cache(
    kind: str,
    window: int,
    head_dim: int,
    calls: list[Call],
    budget: int,
    chunk: int | None,
    max_num_seqs: int,
    spare: int,
    caching: bool,
    preemption: str,
    instruction_set: str,
    guessing: str | None,
    depth: int,
) -> None:
    """Random mixes over scarce blocks: chunks, hits, samples, preemption, swap, drafts, aborts."""
    drafting = {"draft": {"model": str(checkpoint("all", window, head_dim))}, "early-exit": {}}
    speculative = None
    if guessing in drafting:
        speculative = {"method": guessing, "num_speculative_tokens": depth, "adaptive": False}
        speculative |= drafting[guessing]
    options: dict[str, Any] = {
        "max_num_batched_tokens": budget,
        "max_prefill_chunk": chunk,
        "max_num_seqs": max_num_seqs,
        "enable_prefix_caching": caching,
        "preemption": preemption if caching else "recompute",
        "swap_space": 2**20,
        "speculative_config": speculative,
    }
    with selected(instruction_set) as there:
        assume(there)
        probe = load(kind, window, head_dim, **options).executor.info
        num_blocks = probe.kv_groups.most_blocks(64, 4) + spare
        options["kv_cache_memory"] = num_blocks * probe.block_bytes
        engine = load(kind, window, head_dim, **options)
        executor = executor_of(engine)
        assert executor.info.num_blocks == num_blocks
        answers = {
            (call.request.request_id, index): naive_answer(executor, call.request, index)
            for call in calls
            for index in range(call.request.params.n)
        }
        if guessing in ("n-gram", "half right"):
            engine.scheduler.depth = FixedDepth(depth)
            executor.hooks.insert(0, ProposedDrafts(make_proposer(guessing, calls, answers)))
        outputs = run(engine, calls)
    for key, (expected, reason) in answers.items():
        tokens, ended = outputs.get(key, ([], FinishReason.ABORT))
        if ended is FinishReason.ABORT:
            expected, reason = expected[: len(tokens)], FinishReason.ABORT
        assert (tokens, ended) == (expected, reason), f"{kind}, request {key}"


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(LAYERS)),
    window=st.sampled_from([5, 16]),
    name=st.sampled_from(["auto", "int8", "int4"]),
    calls=calls(),
    budget=st.sampled_from([5, 16]),
    max_num_seqs=st.sampled_from([3, 8]),
    spare=st.sampled_from([2, 20]),
)
def test_any_format_in_bfloat16_gives_what_each_request_gets_alone(
    kind: str,
    window: int,
    name: str,
    calls: list[Call],
    budget: int,
    max_num_seqs: int,
    spare: int,
) -> None:
    """Bit for bit with the compiled kernels, against one after the other without prefix cache."""
    options: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_dtype": name}
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": max_num_seqs}
    info = load(kind, window, 32, **options, **limits).executor.info
    memory = (info.kv_groups.most_blocks(64, 4) + spare) * info.block_bytes
    mixed = run(load(kind, window, 32, kv_cache_memory=memory, **options, **limits), calls)
    one_by_one = [Call(0, call.request, None) for call in calls]
    alone = run(
        load(kind, window, 32, max_num_seqs=1, enable_prefix_caching=False, **options), one_by_one
    )
    for key, (expected, reason) in alone.items():
        tokens, ended = mixed.get(key, ([], FinishReason.ABORT))
        if ended is FinishReason.ABORT:
            expected, reason = expected[: len(tokens)], FinishReason.ABORT
        assert (tokens, ended) == (expected, reason), f"{kind} in {name}, request {key}"


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_a_long_answer_stays_within_its_windows(kind: str) -> None:
    """200 tokens through a window of 9: only layers that see everything hold more and more."""
    engine = load(kind, 9, 32, max_model_len=240, max_num_batched_tokens=16)
    groups = engine.info.kv_groups
    prompt = [n % VOCAB for n in range(31)]
    params = SamplingParams(max_tokens=200, temperature=0, detokenize=False, ignore_eos=True)
    engine.submit(GenerationRequest(request_id="0", prompt_token_ids=prompt, params=params))
    pool, tokens, most = engine.scheduler.kv.pool, list[int](), 0
    while engine.has_work():
        tokens += [token for output in engine.step() for token in output.token_ids]
        engine.scheduler.kv.check_integrity()
        most = max(most, pool.num_blocks - pool.num_free)
    assert most <= groups.most_blocks(231, 4)
    windows = KVGroups(tuple(w for w in groups.windows if w is not None), 16)
    assert windows.most_blocks(10**6, 4) <= 8 * windows.count
    assert tokens == generate_naive(executor_of(engine).model, prompt, params)[0]


def test_layers_that_see_alike_share_blocks_of_equal_size() -> None:
    """Six layers, two of which see everything: three groups of two, in two pairs of tensors."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    raw = tiny_config(
        "qwen3",
        num_hidden_layers=6,
        layer_types=kinds,
        use_sliding_window=True,
        sliding_window=8,
    )
    folder = write_checkpoint(Path(mkdtemp()) / "six", raw)
    config = EngineConfig.from_flat(
        {"model": str(folder), "device": "cpu", "kv_cache_memory": 2**20, "max_model_len": 64}
    )
    executor = load_torch_executor(config)
    info, kv = executor.info, executor.kv
    assert info.kv_groups.windows == (None, 8, 8)
    assert kv.groups == ((2, 5), (0, 1), (3, 4))
    assert len(kv.block_tensors()) == 4 and kv.keys[2] is kv.keys[0] is kv.keys[3]
    assert info.num_blocks == 2**20 // info.block_bytes
    assert info.block_bytes * 3 == info.block_size * info.kv_bytes_per_token
    assert sum(tensor.nbytes for tensor in kv.block_tensors()) == info.num_blocks * info.block_bytes


@pytest.mark.parametrize("kind", ["mixed", "in turn"])
def test_a_request_that_fails_leaves_no_nan_in_any_group(kind: str) -> None:
    """What a pass with NaN wrote is zeroed in the blocks of all groups; another answers as ever."""
    engine = load(kind, 9, 8)
    executor = executor_of(engine)
    params = SamplingParams(
        max_tokens=20,
        temperature=0,
        detokenize=False,
        ignore_eos=True,
        banned_token_ids=(VOCAB - 1,),
    )
    assert isinstance(executor.model, Decoder)
    embedding = executor.model._embedding
    assert isinstance(embedding, TorchLinear)
    embedding.weight[VOCAB - 1] = torch.nan
    prompts = {"bad": [5] * 20 + [VOCAB - 1], "good": [7, 8, 9] * 6}
    for name, prompt in prompts.items():
        call = GenerationRequest(request_id=name, prompt_token_ids=prompt, params=params)
        engine.submit(call)
    tokens: list[int] = []
    failed = False
    while engine.has_work():
        for output in engine.step():
            failed |= output.request_id == "bad" and output.error is not None
            tokens += output.token_ids if output.request_id == "good" else []
        engine.scheduler.kv.check_integrity()
    assert failed and all(bool(t.isfinite().all()) for t in executor.kv.block_tensors())
    assert tokens == generate_naive(executor.model, prompts["good"], params)[0]
