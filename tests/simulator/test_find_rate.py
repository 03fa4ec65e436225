"""Protects: ``--find rate`` finds the rate at which a naive scan sees the targets fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.errors import ConfigError
from twostroke.simulator.find_rate import HIGHEST, LOWEST, PRECISION, find_rate


@given(st.floats(2 * LOWEST, HIGHEST / 4), st.floats(0.01, 100))
def test_the_border_lies_between_both_rates(border: float, start: float) -> None:
    tried: list[float] = []

    def meets(rate: float) -> bool:
        tried.append(rate)
        return rate <= border

    low, high = find_rate(meets, start)
    assert low <= border < high <= low * (1 + PRECISION) * (1 + 1e-9)
    assert low in tried and len(tried) < 50


@pytest.mark.parametrize(
    ("meets", "message"),
    [(lambda rate: False, "no rate meets"), (lambda rate: True, "meet the targets")],
)
def test_no_border(meets: Callable[[float], bool], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_rate(meets, 1.0)
