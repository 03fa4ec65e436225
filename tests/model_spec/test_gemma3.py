"""Gemma 3's published files, which leave to the class in transformers what is as there."""

from __future__ import annotations

from typing import Any

import pytest

from twostroke.model_spec.config.families import FAMILIES
from twostroke.model_spec.kv_arithmetic import kv_arithmetic
from twostroke.model_spec.public_models import find_model
from twostroke.model_spec.reader import parse_model

# What google/gemma-3-4b-it says of the text model.
PUBLISHED_4B: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}


def test_a_file_of_few_fields() -> None:
    """34 layers x 2 x 4 KV heads x 256 x 2 bytes; each sixth layer sees all, others 1,024."""
    file = {"model_type": "gemma3", "text_config": PUBLISHED_4B, "torch_dtype": "bfloat16"}
    model = parse_model(file)
    assert model == find_model("gemma-3-4b")
    made = kv_arithmetic(model, 8192)
    assert made.bytes_per_token == 34 * 2 * 4 * 256 * 2
    assert {each.window: each.count for each in made.layers} == {1024: 29, None: 5}
    assert made.conversation_bytes == (29 * 1024 + 5 * 8192) * 2 * 4 * 256 * 2
    assert model.context_length == 131_072


def test_a_file_of_no_fields() -> None:
    """26 layers, of which four see all, the others 4,096 tokens."""
    model = parse_model({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    made = kv_arithmetic(model, 8192)
    assert {each.window: each.count for each in made.layers} == {4096: 22, None: 4}


@pytest.mark.parametrize(
    ("name", "billions"),
    [("gemma-3-1b", 1.0), ("gemma-3-4b", 3.88), ("gemma-3-12b", 11.77), ("gemma-3-27b", 27.01)],
)
def test_parameters_of_the_text_models(name: str, billions: float) -> None:
    assert find_model(name).num_parameters / 1e9 == pytest.approx(billions, abs=0.005)


def test_the_defaults_are_those_of_transformers() -> None:
    from transformers import Gemma3TextConfig

    stated, family = Gemma3TextConfig(), FAMILIES["gemma3_text"]
    defaults = {name: getattr(stated, name) for name in family.defaults}
    assert defaults == family.defaults
    assert (stated.head_dim, stated.sliding_window) == (family.head_dim, family.window)
    full = [index for index, kind in enumerate(stated.layer_types) if kind == "full_attention"]
    assert full == [5, 11, 17, 23]
