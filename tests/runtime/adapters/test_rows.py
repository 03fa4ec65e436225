"""Rows with adapters and without in one pass: what each gets, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import random_tensors, tiny_config, write_checkpoint
from tests.models.wide_families import WIDE_FAMILIES
from tests.runtime.adapters.peft_files import (
    ATTENTION,
    MLP,
    adapter_config,
    adapter_tensors,
    merged,
    write_adapter,
)
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.llm_engine import LLMEngine
from twostroke.kernels.library import load_library
from twostroke.layers.compiled import decoder_pass as compiled_pass
from twostroke.runtime.adapters.store import AdapterStore
from twostroke.runtime.hooks.adapters import AdapterRows
from twostroke.runtime.loading import load_torch_executor
from twostroke.runtime.reference import naive_logits
from twostroke.runtime.torch_executor import TorchExecutor

PROMPT = list(range(3, 25))
# Fused projections, their outputs in another order, parallel branches, norms of what is added.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 16, "tie_word_embeddings": True},
    "phi3": {"pad_token_id": 0},
    "gemma2": {"head_dim": 16, "query_pre_attn_scalar": 16},
    "cohere2": {"head_dim": 16, "layer_norm_eps": 1e-5},
    "glm4": {"head_dim": 16, "partial_rotary_factor": 0.5, "pad_token_id": 0},
    "olmo2": {},
    # Experts have no additions, attention beside them has.
    "mixtral": {"num_local_experts": 4, "head_dim": 16},
}
TARGETS = (*ATTENTION, *MLP, "qkv_proj", "gate_up_proj")


def config_of(model: Path, **more: Any) -> EngineConfig:
    own = {"model": str(model), "device": "cpu", "kv_cache_memory": 2**20, "block_size": 8}
    return EngineConfig.from_flat({**own, **more})


def store_of(executor: TorchExecutor) -> AdapterStore:
    return next(hook.store for hook in executor.hooks if isinstance(hook, AdapterRows))


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("dtype", "rank"), [("float32", 3), ("bfloat16", 8)])
def test_logits_are_those_of_merged_weights(
    tmp_path: Path, family: str, dtype: str, rank: int
) -> None:
    raw = tiny_config(family, **FAMILIES[family])
    base = random_tensors(raw)
    own = adapter_tensors(base, TARGETS, rank)
    folder = write_adapter(tmp_path / "lora", adapter_config(TARGETS, rank, use_rslora=True), own)
    scale = 6 / rank**0.5
    both = write_checkpoint(tmp_path / "merged", raw, merged(base, own, scale))
    base_path = write_checkpoint(tmp_path / "base", raw, base)
    config = config_of(base_path, dtype=dtype, lora=(f"own={folder}",))
    adapters = Adapters(config.adapters)
    executor = load_torch_executor(config, adapters=adapters)
    digest = adapters.known["own"].digest
    model = store_of(executor).adapted(executor.model, [digest], [len(PROMPT)])
    exact, rounded = (
        naive_logits(load_torch_executor(config_of(both, dtype=each)).model, PROMPT)
        for each in ("float32", dtype)
    )
    spread = float(exact.std())
    error = float((naive_logits(model, PROMPT) - exact).abs().mean())
    # Merged weights are rounded to bfloat16, too.
    assert error < 1e-5 * spread + 1.5 * float((rounded - exact).abs().mean())
    assert float((naive_logits(executor.model, PROMPT) - exact).abs().mean()) > spread / 2


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_base_rows_are_bitwise_unchanged_and_no_row_depends_on_others(
    tmp_path: Path, quantization: str | None
) -> None:
    """bfloat16 on compiled kernels."""
    raw = tiny_config("llama", head_dim=16, hidden_size=64, intermediate_size=96)
    engine = engine_with_two(tmp_path, raw, quantization=quantization)
    asked = requests_of(["", "one", "two", "", "one", ""])
    together = answers(engine, asked)
    for request in asked:
        assert answers(engine, [request])[request.request_id] == together[request.request_id]


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma2", "cohere2", "olmo2"])
def test_the_compiled_pass_adds_what_its_layers_add_one_by_one(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: rows apart and side by side, windows, branches in parallel, norms of outputs."""
    wide = {"head_dim": 16, "hidden_size": 64, "intermediate_size": 96}
    raw = tiny_config(
        family, **{**FAMILIES[family], **wide, "num_hidden_layers": 6, "sliding_window": 9}
    )
    check_both_ways(tmp_path, raw, monkeypatch)


@pytest.mark.parametrize("family", ["qwen3.5", "nemotron-h", "gemma4-shared", "gemma4-moe"])
def test_the_compiled_pass_adds_to_layers_of_every_kind(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_both_ways(tmp_path, WIDE_FAMILIES[family], monkeypatch)


def check_both_ways(tmp_path: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with_two(tmp_path, raw, max_num_batched_tokens=48)
    asked = requests_of(["one", "two", "", "two", "one", "one"])
    expected = answers(engine, asked)
    assert isinstance(engine.executor, TorchExecutor)
    assert store_of(engine.executor)._compiled[1] is not None
    monkeypatch.setattr(AdapterStore, "_compile", lambda *_: None)
    assert answers(engine, asked) == expected


def test_parts_of_a_pass_find_their_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On three threads, which take 4 tokens each through all layers, and MLPs 16 at a time."""
    raw = tiny_config("llama", head_dim=16, hidden_size=64, intermediate_size=96)
    asked = requests_of(["one", "two", "", "two", "one", "one"])
    expected = answers(engine_with_two(tmp_path / "whole", raw), asked)
    library = load_library()
    assert library is not None
    for changes in ({"PART_TOKENS": 4}, {"MLP_TOKENS": 16}):
        for name, value in changes.items():
            monkeypatch.setattr(compiled_pass, name, value)
        engine = engine_with_two(tmp_path / "parts", raw)
        library.set_num_threads(3)
        try:
            assert answers(engine, asked) == expected
        finally:
            library.set_num_threads(torch.get_num_threads())


def test_the_same_contents_by_another_name_are_those_in_memory(tmp_path: Path) -> None:
    raw = tiny_config("llama", head_dim=16, hidden_size=64, intermediate_size=96)
    engine = engine_with_two(tmp_path, raw)
    executor = engine.executor
    assert isinstance(executor, TorchExecutor)
    store, asked = store_of(executor), requests_of(["one", "one"])
    expected = answers(engine, asked)
    (digest, before), *_ = store._additions.items()
    for name in ("one", "two"):
        assert store.load(str(tmp_path / name), 256, 2**20).nbytes
    assert store._additions[digest] is before
    assert answers(engine, asked) == expected


def engine_with_two(tmp_path: Path, raw: dict[str, Any], **more: Any) -> LLMEngine:
    """A bfloat16 model with adapters ``one`` and, of attention, ``two``; skips without kernels."""
    base = random_tensors(raw)
    paths = {
        name: write_adapter(
            tmp_path / name,
            adapter_config(targets, rank),
            adapter_tensors(base, targets, rank, seed=rank),
        )
        for name, rank, targets in (("one", 4, TARGETS), ("two", 7, (*ATTENTION, "qkv_proj")))
    }
    config = config_of(
        write_checkpoint(tmp_path / "base", raw, base),
        dtype="bfloat16",
        lora=tuple(f"{name}={path}" for name, path in paths.items()),
        enable_prefix_caching=False,
        **more,
    )
    adapters = Adapters(config.adapters)
    executor = load_torch_executor(config, adapters=adapters)
    if executor.model.compiled_pass is None:
        pytest.skip("there are no compiled kernels")
    return LLMEngine(executor, config=config, adapters=adapters)


def requests_of(names: list[str]) -> list[GenerationRequest]:
    """One of each adapter, empty for none, with prompts of different lengths."""
    return [
        GenerationRequest(
            request_id=f"{place}",
            prompt_token_ids=PROMPT[place:],
            adapter=name,
            params=SamplingParams(
                max_tokens=9, temperature=0.0, detokenize=False, ignore_eos=True, logprobs=3
            ),
        )
        for place, name in enumerate(names)
    ]


def answers(engine: LLMEngine, requests: list[GenerationRequest]) -> dict[str, list[object]]:
    """Tokens and log-probabilities, to the last bit, by request."""
    for request in requests:
        engine.submit(request)
    got: dict[str, list[object]] = {request.request_id: [] for request in requests}
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            positions = output.logprobs or []
            got[output.request_id] += [
                *output.token_ids,
                *((one.token_id, one.logprob) for each in positions for one in each.top),
            ]
    return got


def test_cached_prefixes_are_apart_by_adapter(tmp_path: Path) -> None:
    raw = tiny_config("llama")
    base = random_tensors(raw)
    folder = write_adapter(tmp_path / "lora", adapter_config(), adapter_tensors(base))
    config = config_of(
        write_checkpoint(tmp_path / "base", raw, base),
        lora=(f"one={folder}", f"same={folder}"),
    )
    adapters = Adapters(config.adapters)
    engine = LLMEngine(
        load_torch_executor(config, adapters=adapters), config=config, adapters=adapters
    )
    hits = {}
    for request_id, name in (("a", ""), ("b", "one"), ("c", "one"), ("d", ""), ("e", "same")):
        params = SamplingParams(max_tokens=1, detokenize=False)
        engine.submit(
            GenerationRequest(
                request_id=request_id, prompt_token_ids=PROMPT, params=params, adapter=name
            )
        )
        while engine.has_work():
            for output in engine.step():
                hits[request_id] = output.num_cached_tokens
    assert hits == {"a": 0, "b": 0, "c": 16, "d": 16, "e": 0}


def test_additions_are_none_between_passes(tmp_path: Path) -> None:
    raw = tiny_config("llama")
    base = random_tensors(raw)
    folder = write_adapter(tmp_path / "lora", adapter_config(), adapter_tensors(base))
    config = config_of(write_checkpoint(tmp_path / "base", raw, base), lora=(f"own={folder}",))
    adapters = Adapters(config.adapters)
    executor = load_torch_executor(config, adapters=adapters)
    before = naive_logits(executor.model, PROMPT)
    digest = adapters.known["own"].digest
    model = store_of(executor).adapted(executor.model, [digest], [len(PROMPT)])
    changed = naive_logits(model, PROMPT)
    assert not torch.equal(before, changed)
    assert torch.equal(before, naive_logits(executor.model, PROMPT))
    with pytest.raises(RuntimeError):  # of other tokens than it was made for
        naive_logits(model, PROMPT[:-1])
