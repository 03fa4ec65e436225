"""Protects: targets are read as they are written, and mistakes are named."""

from __future__ import annotations

import pytest

from twostroke.core.errors import ConfigError
from twostroke.planner.goals import Goal, parse_goals, shown_seconds
from twostroke.planner.options import GoalOptions


def test_targets_are_read() -> None:
    options = GoalOptions(ttft=("p50=200ms,p95=0.5",), tpot=("0.04",), e2e=("mean=10", "P99=30"))
    assert parse_goals(options) == (
        Goal("ttft", 50.0, 0.2),
        Goal("ttft", 95.0, 0.5),
        Goal("tpot", 95.0, 0.04),
        Goal("e2e", None, 10.0),
        Goal("e2e", 99.0, 30.0),
    )
    assert [goal.field for goal in parse_goals(options)][-2:] == ["e2e_mean", "e2e_p99"]


@pytest.mark.parametrize(
    "text",
    ["p95", "p95=", "p95=fast", "q95=1", "p0=1", "p100=1", "p95=0", "p95=500", "=", "", "-1"],
)
def test_mistakes_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--ttft") as error:
        parse_goals(GoalOptions(ttft=(text,)))
    assert error.value.hint


def test_a_target_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        parse_goals(GoalOptions(ttft=("p95=1", "0.5")))


def test_seconds_have_three_digits() -> None:
    shown = [shown_seconds(seconds) for seconds in (0.00254, 0.0404, 0.4567, 1.5, 250.0)]
    assert shown == ["2.54 ms", "40.4 ms", "457 ms", "1.50 s", "250 s"]
