"""Protects: public models are found by the names that people write, and by no other."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ModelLoadError
from twostroke.model_spec.public_models import find_model, public_names


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
    "name", ["Qwen/Qwen3-32B-FP8", "meta-llama/Llama-3.1-7B", "other/Llama-3.1-8B-Instruct"]
)
def test_other_formats_sizes_and_makers_are_other_models(name: str) -> None:
    with pytest.raises(ModelLoadError):
        find_model(name)


def test_short_names_stay_apart() -> None:
    assert len({find_model(name).num_parameters for name in public_names()}) > 25
