"""Protects: rotary tables turn heads as transformers does, for every kind of scaling."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.checkpoints import LLAMA3_ROPE, tiny_config
from twostroke.layers.rotary import RotaryTable, rope_frequencies
from twostroke.model_spec.rope import RopeSpec
from twostroke.models.support import parse_runnable

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 8.0,
    "original_max_position_embeddings": 1024,
}
SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 500000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    LLAMA3_ROPE,
    YARN,
    {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 512,
        "short_factor": [1.0 + 0.01 * pair for pair in range(32)],
        "long_factor": [1.5 + 0.25 * pair for pair in range(32)],
    },
    {**YARN, "attention_factor": 0.7, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False},
]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_rotations_equal_those_of_transformers(scaling: dict[str, Any]) -> None:
    raw = tiny_config("llama", head_dim=64, rope_parameters=scaling, max_position_embeddings=8192)
    rope = parse_runnable(raw).rope
    assert rope is not None
    settings = {
        name: value for name, value in raw.items() if name not in ("model_type", "torch_dtype")
    }
    positions = torch.tensor([0, 1, 77, 1023, 4000])
    heads = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(LlamaConfig(**settings))(heads, positions[None])
    expected, _ = apply_rotary_pos_emb(
        heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin
    )
    table = RotaryTable(rope, 64, 8192, torch.device("cpu"))
    rotated = table.rotation(positions).apply(heads)
    torch.testing.assert_close(rotated, expected[0].transpose(0, 1), atol=2e-4, rtol=1e-4)


def test_a_model_for_short_requests_has_the_short_factors() -> None:
    rope = RopeSpec(
        kind="longrope",
        factor=4.0,
        original_length=512,
        short_factors=(1.0, 2.0),
        long_factors=(3.0, 5.0),
    )
    short, scale = rope_frequencies(rope, 4, 512)
    long, same = rope_frequencies(rope, 4, 513)
    torch.testing.assert_close(short / long, torch.tensor([3.0, 2.5]))
    assert scale == same == pytest.approx((1 + math.log(4) / math.log(512)) ** 0.5)


def test_position_zero_is_no_rotation_and_the_dtype_is_kept() -> None:
    heads = torch.randn(2, 3, 8).bfloat16()
    rotation = RotaryTable(RopeSpec(), 8, 4, torch.device("cpu")).rotation(torch.tensor([0, 0]))
    assert torch.equal(rotation.apply(heads), heads)


def test_a_yarn_ramp_of_no_width_is_finite() -> None:
    frequencies, _ = rope_frequencies(
        RopeSpec(kind="yarn", factor=2.0, original_length=6, theta=1e6), 64, 32
    )
    assert bool(torch.isfinite(frequencies).all())
