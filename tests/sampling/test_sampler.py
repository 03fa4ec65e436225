from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.sampling.helpers import make_request, sample, support
from twostroke.core.sampling_params import MIN_REPETITION_PENALTY
from twostroke.sampling.random import uniforms
from twostroke.sampling.sampler import Sampler

# Probabilities 0.4, 0.1, 0.3, 0.2.
LOGITS = [math.log(p) for p in (0.4, 0.1, 0.3, 0.2)]


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [3.0, -torch.inf, 3.0, 3.0]])
    assert sample(logits, [make_request(temperature=0)] * 2).token_ids == [1, 0]


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 4), []).token_ids == []


def test_draw_by_hand() -> None:
    """Inverse CDF in vocabulary order: bounds at 0.4, 0.5 and 0.8."""
    seeds = np.arange(50, dtype=np.uint64)
    shares = uniforms(seeds, np.full(50, 3, dtype=np.int64))
    expected = [int(np.searchsorted([0.4, 0.5, 0.8], share, side="right")) for share in shares]
    requests = [make_request((0, 1), (2,), seed=seed) for seed in range(50)]
    assert sample(torch.tensor([LOGITS] * 50), requests).token_ids == expected
    assert set(expected) == {0, 1, 2, 3}


def test_temperature_by_hand() -> None:
    """At 0.5 the probabilities are squared: 16, 1, 9 and 4 parts of 30."""
    shares = uniforms(np.arange(50, dtype=np.uint64), np.full(50, 1, dtype=np.int64))
    expected = [
        int(np.searchsorted([16 / 30, 17 / 30, 26 / 30], share, side="right")) for share in shares
    ]
    requests = [make_request(seed=seed, temperature=0.5) for seed in range(50)]
    assert sample(torch.tensor([LOGITS] * 50), requests).token_ids == expected


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-20, 1e-3])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    assert support([1e4, -1e30, 9.9e3, -torch.inf], temperature=temperature) == {0}


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 2, 3}),
        ({"top_k": 4}, {0, 1, 2, 3}),
        ({"top_k": 1000}, {0, 1, 2, 3}),
        ({"top_k": -1}, {0, 1, 2, 3}),
        ({"top_p": 1e-12}, {0}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 2}),
        ({"top_p": 0.69}, {0, 2}),
        ({"top_p": 0.71}, {0, 2, 3}),
        ({"top_p": 0.91}, {0, 1, 2, 3}),
        # After top_k=2 the probabilities are 4/7 and 3/7.
        ({"top_k": 2, "top_p": 0.56}, {0}),
        ({"top_k": 2, "top_p": 0.58}, {0, 2}),
        ({"min_p": 0.24}, {0, 1, 2, 3}),
        ({"min_p": 0.26}, {0, 2, 3}),
        ({"min_p": 0.74}, {0, 2}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.26, "top_p": 0.69}, {0, 2}),
        ({"min_p": 0.76, "top_k": 3}, {0}),
        # Temperature comes before the filters: squared, the likeliest has 16 parts of 30.
        ({"top_p": 0.5, "temperature": 0.5}, {0}),
        ({"min_p": 0.5, "temperature": 0.5}, {0, 2}),
    ],
)
def test_filters_by_hand(params: dict[str, Any], kept: set[int]) -> None:
    assert support(LOGITS, **params) == kept


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.3}, {1, 2}),
        ({"top_p": 0.5}, {1, 2}),
        ({"top_p": 0.2}, {1}),
        ({"min_p": 1.0}, {1, 2, 4, 5}),
    ],
)
def test_equal_tokens_enter_lowest_id_first(params: dict[str, Any], kept: set[int]) -> None:
    assert support([-torch.inf, 1.0, 1.0, -torch.inf, 1.0, 1.0], **params) == kept


def test_top_k_of_one_is_greedy_even_among_equals() -> None:
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).round()
    greedy = sample(logits, [make_request(temperature=0)] * 64).token_ids
    assert (
        sample(
            logits, [make_request(top_k=1, seed=seed, temperature=100.0) for seed in range(64)]
        ).token_ids
        == greedy
    )


def test_tokens_of_logit_minus_infinity_are_never_drawn() -> None:
    logits = [-torch.inf] * 500
    logits[250] = -1e30
    for params in ({}, {"top_p": 0.999}, {"top_k": 400}, {"min_p": 0.1}):
        assert support(logits, draws=50, **params) == {250}


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("params", "kept"),
    [({}, 20), ({"top_k": 8}, 8), ({"top_p": 0.999999}, 20), ({"temperature": 2.0}, 20)],
)
def test_frequencies_follow_softmax(params: dict[str, Any], kept: int) -> None:
    """Over positions of a few seeds; the bound is the mean of chi-square plus four standard
    deviations.
    """
    rows, passes = 500, 20
    logits = torch.randn(20, generator=torch.Generator().manual_seed(3))
    scaled = (logits / params.get("temperature", 1.0)).double()
    likeliest = scaled.topk(kept).indices
    probabilities = torch.full((20,), -torch.inf, dtype=torch.float64)
    probabilities[likeliest] = scaled[likeliest]
    expected = probabilities.softmax(dim=-1).numpy()
    counts = np.zeros(20)
    for number in range(passes):
        requests = [
            make_request((0,) * (position + 1), seed=number, **params) for position in range(rows)
        ]
        counts += np.bincount(sample(logits.repeat(rows, 1), requests).token_ids, minlength=20)
    assert (counts[expected == 0] == 0).all()
    drawable = expected > 0
    assert chi_square(counts[drawable], expected[drawable]) < kept - 1 + 4 * math.sqrt(
        2 * (kept - 1)
    )


def test_a_pure_greedy_batch_neither_sorts_nor_exponentiates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("not on the greedy path")

    for name in ("draw", "draw_truncated"):
        monkeypatch.setattr(f"twostroke.sampling.sampler.{name}", forbidden)
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    output = Sampler(10, "cpu").sample(
        logits, [make_request(temperature=0, top_k=5, top_p=0.5)] * 4
    )
    assert output.token_ids == before.argmax(dim=-1).tolist()
    assert torch.equal(logits, before)


def test_without_top_k_and_top_p_nothing_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object) -> None:
        raise AssertionError("not without top_k or top_p")

    monkeypatch.setattr("twostroke.sampling.drawing.ranked", forbidden)
    requests = [
        make_request(min_p=0.1),
        make_request(temperature=0.5),
        make_request(temperature=0),
        make_request(top_k=9),
    ]
    assert len(sample(torch.zeros(4, 9), requests).token_ids) == 4


def test_inference_tensors_are_fine() -> None:
    with torch.inference_mode():
        logits = torch.zeros(1, 4)
    assert Sampler(4, "cpu").sample(
        logits, [make_request(banned_token_ids=[0], temperature=0)]
    ).token_ids == [1]


def test_a_row_without_tokens_brings_no_nan_into_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def looking(scaled: Tensor, *args: Any) -> Tensor:
        seen.append(bool(scaled.isnan().any()))
        return torch.zeros(len(scaled), dtype=torch.int64)

    for name in ("draw", "draw_truncated"):
        monkeypatch.setattr(f"twostroke.sampling.sampler.{name}", looking)
    nothing: dict[str, Any] = {"allowed_token_ids": [0], "banned_token_ids": [0]}
    output = sample(
        torch.zeros(2, 3), [make_request(**nothing), make_request(top_p=0.5, **nothing)]
    )
    assert output.token_ids == [-1, -1] and seen == [False, False]


def test_rows_that_are_not_finite_fail_alone() -> None:
    """NaN and +inf, greedy and drawn, also where a mask hides them; -inf alone is no failure."""
    rows = [
        [0.0, math.nan, 3.0],
        [1.0, math.inf, 0.0],
        [0.0, -math.inf, 2.0],
        [math.nan] * 3,
        [0.0, math.nan, 1.0],
    ]
    requests = [make_request(temperature=t, logprobs=2) for t in (0, 1, 0, 1)] + [
        make_request(banned_token_ids=[1])
    ]
    output = sample(torch.tensor(rows), requests)
    assert output.non_finite == [0, 1, 3, 4] and not output.errors
    assert output.token_ids == [-1, -1, 2, -1, -1] and list(output.logprobs) == [2]


EXTREMES: dict[str, list[Any]] = {
    "temperature": [0, 5e-324, 1e-20, 100],
    "top_p": [5e-324, 1],
    "min_p": [0, 5e-324, 1],
    "repetition_penalty": [MIN_REPETITION_PENALTY, 100],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "logit_bias": [{0: 100, 1: -100}],
}


def test_no_allowed_value_ends_the_step() -> None:
    """An index out of range in one row fails the pass for all, and three such passes in a row end
    the engine.
    """
    torch.manual_seed(0)
    rows = torch.stack(
        [torch.randn(32), 1e4 * torch.randn(32), torch.zeros(32), torch.full((32,), -torch.inf)]
    )
    rows[3, 5] = -1e4
    for values in itertools.product(*EXTREMES.values()):
        params = dict(zip(EXTREMES, values))
        output = sample(rows, [make_request((0, 1, 5), (5, 2) * 50, **params) for _ in rows])
        assert all(0 <= token < 32 for token in output.token_ids), params
