"""Logits equal those of transformers on tiny random checkpoints, on each way to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import LLAMA3_ROPE, random_tensors, tiny_config, write_checkpoint
from tests.models.parity import TOKENS, TOLERANCE, measure_distances, transformers_logits
from tests.models.tiny_families import FAMILIES
from tests.models.wide_families import WIDE_FAMILIES
from tests.steps import StepDriver
from twostroke.layers.attention.compiled import CompiledBackend

# In bfloat16 on a CPU all layers go in one compiled call if heads are multiples of 16, as every
# real model's are.
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
COMPILED: dict[str, dict[str, Any]] = {
    "compiled-llama": tiny_config("llama", rope_parameters=LLAMA3_ROPE, **WIDE),
    "compiled-qwen2": tiny_config("qwen2", tie_word_embeddings=True, **WIDE),
    "compiled-qwen3": tiny_config("qwen3", **WIDE),
}


def load(
    folder: Path, raw: dict[str, Any], tensors: dict[str, torch.Tensor], **options: Any
) -> StepDriver:
    return StepDriver.load(write_checkpoint(folder, raw, tensors), block_size=4, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    assert measure_distances(FAMILIES[family], tmp_path).largest() < TOLERANCE


# Put together from other kinds of layers; those with windows have a backend of several.
COMPILED |= {
    f"compiled-{name}": WIDE_FAMILIES[name]
    for name in ("granite", "olmo2", "smollm3", "glm4", "cohere2", "gemma2", "gemma3")
}


@pytest.mark.parametrize("family", ["llama-tied-llama3-rope", "mistral-window", "qwen3", *COMPILED])
def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(
    family: str, tmp_path: Path
) -> None:
    # Random bfloat16 rounding differs between any two correct implementations; allow twice
    # transformers' own error.
    raw = {**FAMILIES, **COMPILED}[family]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw).items()}
    exact = transformers_logits(raw, {n: t.float() for n, t in tensors.items()}, torch.float32)
    tolerance = 2 * (transformers_logits(raw, tensors, torch.bfloat16) - exact).abs().mean()
    driver = load(tmp_path, raw, tensors, dtype="bfloat16")
    assert driver.executor.model.dtype == torch.bfloat16
    whole = driver.executor.passes.backend
    for backend in getattr(whole, "_backends", [whole]):
        assert isinstance(backend, CompiledBackend) == (family in COMPILED)
    assert driver.executor.model.compiled_pass is not None
    for chunks in ([45], [20, 1, 24]):
        driver.reset()
        assert (driver.chunked_logits(TOKENS, chunks) - exact).abs().mean() < tolerance


# transformers' own product of experts refuses the sizes of Granite's.
@pytest.mark.parametrize("family", sorted(WIDE_FAMILIES.keys() - {"granite-hybrid-experts"}))
def test_bfloat16_of_every_family_is_as_near(family: str, tmp_path: Path) -> None:
    """By whatever kernels run it. A choice of experts may tip: the median of all logits counts."""
    raw = WIDE_FAMILIES[family]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(raw).items()}
    exact = transformers_logits(raw, {n: t.float() for n, t in tensors.items()}, torch.float32)
    tolerance = 2 * (transformers_logits(raw, tensors, torch.bfloat16) - exact).abs().median()
    driver = load(tmp_path, raw, tensors, dtype="bfloat16")
    for chunks in ([45], [20, 1, 24]):
        driver.reset()
        assert (driver.chunked_logits(TOKENS, chunks) - exact).abs().median() < tolerance


def test_requests_of_different_lengths_in_one_step_do_not_change_each_other(tmp_path: Path) -> None:
    raw = FAMILIES["mistral-window"]
    driver = load(tmp_path, raw, random_tensors(raw))
    alone = []
    for length in (45, 3, 17):
        driver.reset()
        alone.append(driver.chunked_logits(TOKENS[:length], [length])[-1])
    driver.reset()
    driver.add("a", TOKENS[:45])
    driver.add("b", TOKENS[:3])
    driver.add("c", TOKENS[:17])
    driver.hidden({"a": 30, "c": 5})
    mixed = driver.hidden({"a": 14, "b": 2, "c": 11})
    mixed = driver.hidden({"b": 1, "a": 1, "c": 1})
    for row, expected in zip(("a", "b", "c"), alone):
        logits = driver.executor.model.logits(mixed[row])[-1]
        assert (logits - expected).abs().max() < 1e-4
