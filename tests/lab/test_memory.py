"""Protects: what the formula of the KV cache says is what models cache, where it holds."""

from __future__ import annotations

import pytest

from twostroke.lab.memory import (
    by_formula,
    is_right,
    room_of_reservations,
    with_all_heads,
    without_heads,
)
from twostroke.lab.registry import find_claims
from twostroke.model_spec.public_models import find_model


def test_the_formula_by_hand() -> None:
    model = find_model("llama-3.1-70b")
    assert by_formula(model) == 2 * 80 * 8 * 128 * 2 == model.kv_bytes_per_token("bf16")
    assert without_heads(model) * 8 == by_formula(model)
    assert with_all_heads(model) == by_formula(model) * 64 // 8
    # Multi-head attention: query heads and KV heads are as many.
    assert with_all_heads(find_model("llama-2-7b")) == by_formula(find_model("llama-2-7b"))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("llama-2-7b", True),
        ("qwen3-30b-a3b", True),
        ("deepseek-v3", False),  # latent attention
        ("gemma-3-27b", False),  # windows
        ("qwen3-next-80b-a3b", False),  # most layers are recurrent
    ],
)
def test_where_the_formula_is_right(name: str, right: bool) -> None:
    assert is_right(find_model(name)) is right


def test_latent_attention_keeps_one_vector() -> None:
    (claim,) = find_claims(["kv-arithmetic"])
    computed = claim.compute()
    model = find_model("deepseek-v3")
    # 512 compressed elements and 64 of the rotation, in 61 layers, 2 bytes each.
    assert computed.figures["latent"] == pytest.approx(by_formula(model) / (61 * 576 * 2))
    assert 0 < computed.figures["right"] < computed.figures["models"]
    assert computed.verdict.name == "holds with a condition"


def test_reservations_are_weighted_by_how_long_requests_stay() -> None:
    room = room_of_reservations(1000, [(20, 10), (60, 30)], 500)
    # 30 tokens for a quarter of the time and 90 for the rest; 32 and 128; 500 each.
    assert room == {
        "longest": pytest.approx(1000 / 500),
        "power": pytest.approx(1000 / (0.25 * 32 + 0.75 * 128)),
        "final": pytest.approx(1000 / (0.25 * 30 + 0.75 * 90)),
    }


def test_paging_against_reservations() -> None:
    (claim,) = find_claims(["paging"])
    computed = claim.compute()
    figures = computed.figures
    # A request holds its prompt and, on average over its life, about half of its answer.
    assert figures["longest"] == pytest.approx(
        figures["paged"] * 2048 / figures["capacity"], rel=1e-9
    )
    assert 1 < figures["final"] < 2 < figures["power"] < 4 < figures["longest"]
    assert computed.verdict.name == "holds with a condition"
