"""Requests with adapters and without, mixed: each gets the tokens that merged weights give it
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.engine.exactness.test_exactness import FAMILIES, Call, calls, run
from tests.runtime.adapters.peft_files import (
    adapter_config,
    adapter_tensors,
    merged,
    write_adapter,
)
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.request import FinishReason
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.llm_engine import LLMEngine
from twostroke.models.language_model import LanguageModel
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import generate_naive
from twostroke.sampling.random import derive_seed

# Targets, rank and seed of each; alpha is 6.
ADAPTERS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "all": (("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 4, 1),
    "values": (("q_proj", "v_proj"), 3, 2),
    "mlp": (("down_proj", "up_proj"), 1, 3),
}


@dataclass(frozen=True)
class Files:
    """A base model, and by adapter its folder and the model of the merged weights."""

    base: Path
    adapters: Mapping[str, Path]
    models: Mapping[str, LanguageModel]


@cache
def files(family: str) -> Files:
    raw, folder = tiny_config(family, **FAMILIES[family]), Path(mkdtemp())
    tensors = random_tensors(raw)
    adapters, merges = {}, {"": write_checkpoint(folder / "base", raw, tensors)}
    for name, (targets, rank, seed) in ADAPTERS.items():
        own = adapter_tensors(tensors, targets, rank, seed)
        adapters[name] = write_adapter(folder / name, adapter_config(targets, rank), own)
        both = merged(tensors, own, 6 / rank)
        merges[name] = write_checkpoint(folder / f"merged-{name}", raw, both)
    models = {name: load_torch_executor(options(path)).model for name, path in merges.items()}
    return Files(merges[""], adapters, models)


def options(model: Path, **more: Any) -> EngineConfig:
    return EngineConfig.from_flat(
        {
            "model": str(model),
            "device": "cpu",
            "max_model_len": 64,
            "kv_cache_memory": 2**20,
            **more,
        }
    )


@st.composite
def adapted_calls(draw: st.DrawFn) -> list[Call]:
    random = Random(draw(st.integers(0, 2**32)))
    names = ["", *ADAPTERS]
    return [
        replace(call, request=replace(call.request, adapter=random.choice(names)))
        for call in draw(calls())
    ]


def alone(model: LanguageModel, request: GenerationRequest, index: int) -> tuple[list[int], Any]:
    return generate_naive(
        model,
        request.prompt_token_ids,
        request.params,
        seed=derive_seed(request.params.seed or 0, index),
        eos_token_ids=frozenset({2}),
        max_total_tokens=len(request.prompt_token_ids) + (request.params.max_tokens or 0),
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    family=st.sampled_from(sorted(FAMILIES)),
    calls=adapted_calls(),
    budget=st.sampled_from([1, 5, 16, 64]),
    chunk=st.none() | st.sampled_from([3, 8]),
    max_num_seqs=st.sampled_from([3, 8]),
    num_blocks=st.sampled_from([8, 9, 12, 40]),
    max_loras=st.sampled_from([3, 8]),
    guessing=st.sampled_from([None, "ngram", "suffix", "early-exit"]),
)
def test_each_answer_is_that_of_merged_weights_alone(
    family: str,
    calls: list[Call],
    budget: int,
    chunk: int | None,
    max_num_seqs: int,
    num_blocks: int,
    max_loras: int,
    guessing: str | None,
) -> None:
    """Random mixes of adapters, chunks, prefixes that several share, scarce blocks, and drafts."""
    own = files(family)
    head_dim = FAMILIES[family].get("head_dim", 8)
    config = options(
        own.base,
        max_num_batched_tokens=budget,
        max_prefill_chunk=chunk,
        max_num_seqs=max_num_seqs,
        block_size=8,
        kv_cache_memory=num_blocks * 8 * 2 * 2 * 2 * head_dim * 4,
        lora=tuple(f"{name}={path}" for name, path in own.adapters.items()),
        max_loras=max_loras,
        speculative_config=guessing and {"method": guessing, "num_speculative_tokens": 3},
    )
    adapters = Adapters(config.adapters)
    executor = load_torch_executor(config, adapters=adapters)
    outputs = run(LLMEngine(executor, config=config, adapters=adapters), calls)
    for call in calls:
        request = call.request
        for index in range(request.params.n):
            expected, reason = alone(own.models[request.adapter], request, index)
            tokens, ended = outputs.get((request.request_id, index), ([], FinishReason.ABORT))
            if ended is FinishReason.ABORT:
                expected, reason = expected[: len(tokens)], FinishReason.ABORT
            assert (tokens, ended) == (expected, reason), (request.adapter, request.request_id)


def test_an_adapter_changes_the_answers() -> None:
    """Else the test above would pass without any."""
    own, prompt = files("llama"), torch.arange(3, 20).tolist()
    request = GenerationRequest(request_id="a", prompt_token_ids=prompt)
    params = replace(request.params, temperature=0.0, max_tokens=8, detokenize=False)
    answers = [alone(model, replace(request, params=params), 0)[0] for model in own.models.values()]
    assert len(set(map(tuple, answers))) == len(answers)
