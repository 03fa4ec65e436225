"""Protects: public models are found by the names that people write, and by no other."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.public_models import (
    find_model,
    format_by_name,
    hub_id,
    public_names,
)


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("google/gemma-3-4b-pt", "gemma-3-4b"),
        ("gpt-oss-120B", "gpt-oss-120b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
    ],
)
def test_tunings_of_one_size_are_one_description(written: str, short: str) -> None:
    assert find_model(written) == find_model(short)


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("llama3.1:70b", "llama-3.1-70b"),
        ("Llama 3.1 70B", "llama-3.1-70b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("gemma3-27b-it", "gemma-3-27b"),
        ("QWEN3_32B", "qwen3-32b"),
        ("deepseek-r1", "deepseek-v3"),
        ("qwen/qwen3-30b-a3b-thinking-2507", "qwen3-30b-a3b-2507"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.2"),
        ("MiniMaxAI/MiniMax-M1-40k", "minimax-m1"),
    ],
)
def test_names_are_found_as_people_write_them(written: str, short: str) -> None:
    assert find_model(written) == find_model(short)


@pytest.mark.parametrize(
    ("written", "short", "weights"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8-dynamic", "llama-3.1-70b", "fp8"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", "int4"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b", "int4"),
        ("Qwen2.5-72B-Instruct-GPTQ-Int8", "qwen2.5-72b", "int8"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama-3.3-70b", "nvfp4"),
        ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "llama-3.3-70b", "int4"),
        ("nvidia/DeepSeek-R1-NVFP4", "deepseek-v3", "nvfp4"),
        ("unsloth/DeepSeek-V3-bf16", "deepseek-v3", "bf16"),
    ],
)
def test_a_name_says_in_which_format_a_copy_is(written: str, short: str, weights: str) -> None:
    model = find_model(written)
    assert model.format == weights == format_by_name(written)
    assert model.num_parameters == find_model(short).num_parameters
    assert hub_id(written) == written  # the copy is what is served


def test_the_makers_own_format_is_no_other() -> None:
    assert find_model("deepseek-v3-fp8") == find_model("deepseek-v3")
    assert format_by_name("deepseek-v3-fp8") is format_by_name("llama-3.1-8b") is None
    assert hub_id("llama3.1-8b") == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("meta-llama/Llama-3.1-7B", "llama-3.1-8b"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistral-7b"),
        ("google/gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b"),
        ("nothing-like-it", "known by name"),
    ],
)
def test_other_sizes_and_versions_are_refused_with_near_names(name: str, near: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        find_model(name)
    assert near in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "billions", "active", "gigabytes"),
    [
        ("kimi-k2-thinking", 1026.4, 32, 594),  # the size of its files
        ("glm-4.5", 355, 32, None),
        ("glm-4.5-air", 106, 12, None),
        ("glm-5", 744, 40, None),
        ("minimax-m1", 456, 45.9, None),
        ("minimax-m2", 230, 10, 230),
        ("gemma-4-31b", 30.7, 30.7, None),
        ("gemma-4-26b-a4b", 25.2, 3.8, None),
        ("llama-4-scout", 107.8, 17, None),
        ("llama-4-maverick", 400, 17, None),
        ("deepseek-v3.2", 672, 37, None),
    ],
)
def test_sizes_are_those_that_their_makers_state(
    name: str, billions: float, active: float, gigabytes: float | None
) -> None:
    model = find_model(name)
    assert model.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert model.active_parameters / 1e9 == pytest.approx(active, rel=0.07)
    if gigabytes is not None:
        assert model.weight_bytes() / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_short_names_stay_apart() -> None:
    assert len({find_model(name).num_parameters for name in public_names()}) > 25
