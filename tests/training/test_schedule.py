"""Protects: the learning rate's course, which falls are over, and what is exported."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from training.export import mean_of_falls
from training.train import falls_ended, learning_rate

# From, to, and from what share of the peak.
FALLS = [
    (0.278, 0.564, 1.0),
    (0.564, 0.738, 0.5),
    (0.738, 0.868, 0.35),
    (0.868, 1.0, 0.35),
]
LEAST = 0.02  # Of where a fall begins.


def test_the_rate_rises_then_stays_until_the_first_fall() -> None:
    rates = [learning_rate(fraction / 1000, 2.0) for fraction in range(278)]
    assert rates[0] == pytest.approx(2.0 * 0.02)
    assert all(a < b for a, b in pairwise(rates[:15]))
    assert set(rates[14:]) == {2.0}


@pytest.mark.parametrize(("begin", "end", "top"), FALLS)
def test_a_fall_goes_straight_from_its_top_to_nearly_nothing(
    begin: float, end: float, top: float
) -> None:
    steps = [begin + (end - begin) * i / 100 for i in range(100)]
    rates = [learning_rate(fraction, 2.0) for fraction in steps]
    assert rates[0] == pytest.approx(2.0 * top)
    assert all(a > b for a, b in pairwise(rates))
    assert rates[50] == pytest.approx((rates[0] + 2.0 * top * LEAST) / 2)
    assert learning_rate(end - 1e-9, 2.0) == pytest.approx(2.0 * top * LEAST)


def test_the_last_fall_ends_at_its_least_and_stays_there() -> None:
    """The last step may see a little more than all tokens."""
    assert learning_rate(1.0, 2.0) == learning_rate(1.001, 2.0) == pytest.approx(2.0 * 0.35 * LEAST)


@pytest.mark.parametrize(
    ("fraction", "ended"),
    [
        (0.0, 0),
        (0.563, 0),
        (0.564, 1),
        (0.737, 1),
        (0.738, 2),
        (0.867, 2),
        (0.868, 3),
        (0.999, 3),
        (1.0, 4),
    ],
)
def test_a_fall_is_over_when_the_next_begins(fraction: float, ended: int) -> None:
    assert falls_ended(fraction) == ended


def state(tokens: int) -> dict[str, Any]:
    def weights(value: float) -> dict[str, torch.Tensor]:
        return {"a": torch.full((2, 3), value), "b": torch.tensor([value, -value])}

    return {
        "progress": {"tokens": tokens},
        "million_tokens": 2.0,
        "settled": [weights(1.0), weights(4.0), weights(6.0)],
        "average": weights(9.0),
    }


@pytest.mark.parametrize(
    ("tokens", "value"), [(1_999_999, 9.0), (2_000_000, 5.0), (2_003_071, 5.0)]
)
def test_of_a_finished_run_the_mean_of_the_last_two_falls_is_exported(
    tokens: int, value: float
) -> None:
    """Of an unfinished one, which may have no two, the moving average."""
    exported = mean_of_falls(state(tokens))
    assert exported["a"].tolist() == [[value] * 3] * 2
    assert exported["b"].tolist() == [value, -value]
