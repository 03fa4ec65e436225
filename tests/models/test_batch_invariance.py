"""Protects: in bfloat16 no bit of an answer depends on company, chunks, preemption or prefix hits.

In float32 rounding hides behind tolerances; here a token that is near another could fall.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints import random_tensors, write_checkpoint
from tests.models.wide_families import WIDE_FAMILIES
from tests.steps import StepDriver
from twostroke.core.config import EngineConfig
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.llm_engine import LLMEngine
from twostroke.runtime.loading import load_torch_executor

LENGTH = 75
TOKENS = torch.randint(0, 96, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
CHUNKS = ([1] * LENGTH, [10, 20, 1, 1, 2, 41], [3, 38, 9, 25])
OPTIONS: dict[str, Any] = {
    "device": "cpu",
    "max_num_seqs": 4,
    "max_model_len": 128,
    "block_size": 4,
    "dtype": "bfloat16",
}


def write(folder: Path, family: str) -> Path:
    raw = WIDE_FAMILIES[family]
    return write_checkpoint(folder, raw, random_tensors(raw, dtype=torch.bfloat16, std=0.15))


@pytest.mark.parametrize("family", WIDE_FAMILIES)
def test_logits_are_the_same_bits_on_each_way(family: str, tmp_path: Path) -> None:
    driver = StepDriver.load(write(tmp_path, family), **OPTIONS)
    whole = driver.chunked_logits(TOKENS, [LENGTH])
    assert bool(whole.isfinite().all()) and not torch.equal(whole[3], whole[4])
    for chunks in CHUNKS:
        driver.reset()
        assert torch.equal(driver.chunked_logits(TOKENS, chunks), whole), chunks
    for seed in range(3):
        assert torch.equal(logits_in_company(driver, Random(seed)), whole), seed
    driver.reset()
    driver.add("lost", TOKENS)
    driver.hidden({"lost": 21})
    driver.release("lost")
    driver.hidden({"lost": 70})
    with torch.inference_mode():
        last = driver.executor.model.logits(driver.hidden({"lost": 5})["lost"])
    assert torch.equal(last, whole[70:])


@pytest.mark.parametrize("family", WIDE_FAMILIES)
def test_a_hit_changes_no_bit(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path, family)
    assert last_logprobs(folder, [30, LENGTH], hit=28) == last_logprobs(folder, [LENGTH], hit=0)


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "int4", "fp8"])
def test_layers_of_several_shapes_share_blocks_in_every_format(
    kv_cache_dtype: str, tmp_path: Path
) -> None:
    """What a layer of another shape left in a block is never read, whatever it is as a scale."""
    raw = WIDE_FAMILIES["gemma4"] | {"head_dim": 32, "global_head_dim": 64}
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, dtype=torch.bfloat16, std=0.15))
    plain = StepDriver.load(folder, **OPTIONS).chunked_logits(TOKENS, [LENGTH])
    driver = StepDriver.load(folder, **OPTIONS, kv_cache_dtype=kv_cache_dtype)
    (memory,) = driver.executor.kv.block_tensors()
    if kv_cache_dtype != "fp8":
        memory.fill_(255)  # NaN, as a scale
    whole = driver.chunked_logits(TOKENS, [LENGTH])
    assert bool(whole.isfinite().all()) and not torch.equal(whole, plain)
    error = (whole.float() - plain.float()).abs().mean() / plain.float().std()
    assert error < {"int8": 0.1, "fp8": 0.3, "int4": 0.6}[kv_cache_dtype]
    for chunks in CHUNKS:
        driver.reset()
        assert torch.equal(driver.chunked_logits(TOKENS, chunks), whole), chunks


def test_layers_of_one_kind_may_lie_apart_differently(tmp_path: Path) -> None:
    """Beside few layers of another shape, only the first ones take turns with those."""
    kinds = ["sliding_attention"] * 9 + ["full_attention"]
    raw = WIDE_FAMILIES["gemma4"] | {"num_hidden_layers": 10, "layer_types": kinds}
    folder = write_checkpoint(tmp_path, raw, random_tensors(raw, dtype=torch.bfloat16, std=0.15))
    driver = StepDriver.load(folder, **OPTIONS)
    assert len({tuple(keys.stride()) for keys in driver.executor.kv.keys[:9]}) > 1
    whole = driver.chunked_logits(TOKENS, [LENGTH])
    wide = StepDriver.load(folder, **{**OPTIONS, "dtype": "float32"})
    expected = wide.chunked_logits(TOKENS, [LENGTH])
    assert (whole.float() - expected).abs().mean() < 0.05 * expected.std()
    for chunks in CHUNKS:
        driver.reset()
        assert torch.equal(driver.chunked_logits(TOKENS, chunks), whole), chunks


def logits_in_company(driver: StepDriver, random: Random) -> Tensor:
    """Those of ``TOKENS``, some tokens a step beside those of other requests, in any order."""
    driver.reset()
    lengths = {"before": 60, "own": LENGTH, "behind": 40}
    names = random.sample(list(lengths), 3)
    for name in names:
        tokens = TOKENS if name == "own" else random.choices(range(96), k=lengths[name])
        driver.add(name, tokens)
    parts = []
    while lengths["own"]:
        counts = {name: min(lengths[name], random.choice((1, 1, 5, 24))) for name in names}
        counts = {name: count for name, count in counts.items() if count}
        hidden = driver.hidden(counts)
        parts.append(hidden["own"])
        for name, count in counts.items():
            lengths[name] -= count
    with torch.inference_mode():
        # The head's rows are requests of one step as well.
        return torch.cat([driver.executor.model.logits(part) for part in parts])


def last_logprobs(folder: Path, lengths: list[int], hit: int) -> list[tuple[int, float]]:
    """Of the likeliest tokens after prompts of these lengths, one after the other: of the last."""
    config = EngineConfig.from_flat({"model": str(folder), **OPTIONS})
    engine = LLMEngine(load_torch_executor(config), config=config)
    for length in lengths:
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20, detokenize=False)
        request = GenerationRequest(
            request_id=f"{length}", prompt_token_ids=TOKENS[:length], params=params
        )
        engine.submit(request)
        outputs = []
        while engine.has_work():
            outputs += engine.step()
    (output,) = outputs
    assert output.num_cached_tokens >= hit and output.logprobs is not None
    (position,) = output.logprobs
    return [(top.token_id, top.logprob) for top in position.top]
