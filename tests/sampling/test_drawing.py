"""Protects: drawing with truncation equals a full sort, at any width and to the last weight."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.sampling.drawing import (
    WEIGHT_UNIT,
    Truncation,
    draw,
    draw_truncated,
    first_width,
    pick,
    ranked,
)

LAST_UNIFORM = 1 - 2.0**-53  # the largest that can come


def test_pick_by_hand() -> None:
    weights = torch.tensor([[0, 2, 0, 1, 1, 0]] * 6)
    shares = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, LAST_UNIFORM], dtype=torch.float64)
    assert pick(weights, shares).tolist() == [1, 1, 3, 3, 4, 4]


def test_pick_at_the_ends_never_takes_a_weight_of_zero() -> None:
    weights = torch.zeros(2, 70_000, dtype=torch.int64)
    # The total exceeds 2**53, so that the product with the uniform is rounded.
    weights[:, 5:-5] = int(WEIGHT_UNIT)
    shares = torch.tensor([0.0, LAST_UNIFORM], dtype=torch.float64)
    assert int(weights[0].sum()) > 2**53
    assert pick(weights, shares).tolist() == [5, 70_000 - 6]


def test_pick_stays_inside_a_row_without_weight() -> None:
    assert pick(
        torch.zeros(1, 3, dtype=torch.int64), torch.tensor([0.9], dtype=torch.float64)
    ).tolist() == [0]


@pytest.mark.parametrize("width", [1, 3, 5, 7])
def test_ranked_by_hand(width: int) -> None:
    values = torch.tensor([[1.0, -torch.inf, 3.0, -2.0, 3.0, -0.0, 0.0]])
    assert ranked(values, width).tolist() == [[2, 4, 0, 5, 6, 3, 1][:width]]


@given(
    st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    st.integers(1, 45),
)
def test_ranked_is_a_stable_sort(values: list[float], width: int) -> None:
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:width]
    assert ranked(torch.tensor([values], dtype=torch.float32), width).tolist() == [expected]


@settings(deadline=None)
@given(st.data())
def test_the_first_width_cannot_be_seen(data: st.DataObject) -> None:
    """Narrow first attempts, widened until they suffice, draw what a full sort draws."""
    vocab, rows = 300, 6
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    spread = data.draw(st.sampled_from([0.0, 0.1, 2.0, 20.0]))
    logits = (torch.randn(rows, vocab, generator=generator) * spread).to(torch.bfloat16).float()
    scaled = logits - logits.amax(dim=-1, keepdim=True)
    shares = torch.rand(rows, dtype=torch.float64, generator=generator)
    top_k = data.draw(st.lists(st.sampled_from([1, 2, 40, 200, 300]), min_size=rows, max_size=rows))
    top_p = data.draw(
        st.lists(st.sampled_from([1e-9, 0.3, 0.9, 0.999999, 1.0]), min_size=rows, max_size=rows)
    )
    truncation = Truncation(
        torch.tensor(top_k),
        torch.tensor(top_p, dtype=torch.float64),
        torch.full((rows,), math.ceil(0.001 * WEIGHT_UNIT)),
        bounded=max(top_k) < vocab,
    )
    full = draw_truncated(scaled, shares, truncation, vocab)
    for width in (1, 2, 64):
        assert torch.equal(draw_truncated(scaled, shares, truncation, width), full)


def test_without_filters_both_ways_draw_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 300, generator=generator) * 3
    scaled = logits - logits.amax(dim=-1, keepdim=True)
    shares = torch.rand(200, dtype=torch.float64, generator=generator)
    everything = Truncation(
        torch.full((200,), 300),
        torch.ones(200, dtype=torch.float64),
        torch.zeros(200, dtype=torch.int64),
        False,
    )
    assert torch.equal(draw(scaled, shares, None), draw_truncated(scaled, shares, everything, 64))


def test_first_width_covers_usual_top_k_and_ignores_huge_ones() -> None:
    assert [first_width(k) for k in ([1], [64, 2], [100, 5], [1024], [1025], [40, 32000])] == [
        *(64, 64, 100, 1024, 64, 64)
    ]
