"""Protects: a pool grows at once, shrinks late, and stays within bounds, whatever it is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.core.errors import ConfigError
from twostroke.routing.autoscaler import (
    TARGETS,
    Autoscaler,
    AutoscalerOptions,
    ReplicaReading,
    ScalingSignal,
)

IDLE = ReplicaReading(kv=0.0, busy=0.0, requests=0)


def scaler(**fields: Any) -> Autoscaler:
    return Autoscaler(AutoscalerOptions(**{"autoscale": "kv", "autoscale_target": 0.6, **fields}))


def full(share: float, **fields: Any) -> ReplicaReading:
    return IDLE._replace(kv=share, **fields)


@pytest.mark.parametrize("signal", TARGETS)
def test_the_sum_of_the_signal_is_shared_by_as_many_as_have_its_target(
    signal: ScalingSignal,
) -> None:
    reading = ReplicaReading(kv=0.6, busy=1.4, requests=32)
    assert scaler(autoscale=signal, autoscale_target=None).decide(0.0, [reading] * 2, 0) == 4


def test_requests_that_wait_for_blocks_count_as_much_as_those_that_have_them() -> None:
    assert scaler(max_replicas=20).decide(0.0, [full(3.0), full(0.6)], 0) == 6


def test_what_is_near_enough_stays() -> None:
    assert scaler().decide(0.0, [full(0.64)] * 2, 0) == 2
    assert scaler().decide(0.0, [full(0.56)] * 2, 0) == 2
    assert scaler().decide(0.0, [full(0.7)] * 2, 0) == 3


def test_replicas_that_start_are_waited_for() -> None:
    own = scaler()
    assert own.decide(0.0, [full(1.2)], 0) == 2
    assert own.decide(15.0, [full(1.2)], 1) == 2
    assert own.decide(30.0, [full(2.4)], 1) == 4


def test_it_shrinks_when_fewer_have_been_enough_for_long() -> None:
    own = scaler(scale_down_after=60.0, autoscale_interval=15.0)
    assert own.decide(0.0, [full(0.6)] * 4, 0) == 4
    for now in (15.0, 30.0, 45.0, 60.0):
        assert own.decide(now, [full(0.15)] * 4, 0) == 4
    assert own.decide(75.0, [full(0.3)] * 4, 0) == 2, "the most of the last minute"
    assert own.decide(90.0, [full(0.6)] * 2, 0) == 2


def test_what_is_there_at_the_beginning_stays_as_long() -> None:
    own = scaler(scale_down_after=60.0)
    assert own.decide(15.0, [full(0.05)] * 5, 0) == 5
    assert own.decide(60.0, [full(0.05)] * 5, 0) == 5
    assert own.decide(76.0, [full(0.05)] * 5, 0) == 1


def test_a_short_lull_ends_nothing() -> None:
    own = scaler(scale_down_after=60.0)
    for now in range(0, 300, 15):
        load = 0.1 if now % 45 else 0.6
        assert own.decide(float(now), [full(load)] * 3, 0) == 3


def test_first_tokens_that_come_late_are_a_reason_of_their_own() -> None:
    own = scaler(autoscale_ttft=1.0, scale_down_after=0.0)
    assert own.decide(0.0, [full(0.5, ttft=0.5), full(0.5, ttft=0.9)], 0) == 2
    assert own.decide(1.0, [full(0.5, ttft=4.0), full(0.5, ttft=2.0)], 0) == 6
    assert own.decide(2.0, [full(0.6, ttft=0.0)] * 9 + [full(0.6, ttft=3.0)], 0) == 8


def test_none_is_left_where_that_is_allowed_and_one_comes_for_a_request_that_waits() -> None:
    own = scaler(min_replicas=0, scale_down_after=30.0)
    assert own.decide(0.0, [full(0.1)], 0) == 1
    assert own.decide(20.0, [IDLE], 0) == 1
    assert own.decide(40.0, [IDLE], 0) == 0
    assert own.decide(60.0, [], 0) == 0
    assert own.decide(61.0, [], 0, held=1) == 1
    assert own.decide(75.0, [], 1, held=2) == 1


@given(
    st.lists(
        st.tuples(
            st.floats(0, 20),
            st.lists(st.tuples(st.floats(0, 50), st.integers(0, 500)), max_size=8),
            st.integers(0, 8),
        ),
        max_size=30,
    ),
    st.integers(0, 3),
    st.integers(3, 12),
)
def test_it_stays_within_its_bounds_and_shrinks_to_what_was_wanted(
    told: list[tuple[float, list[tuple[float, int]], int]], least: int, most: int
) -> None:
    own, now = scaler(min_replicas=least, max_replicas=most), 0.0
    for seconds, loads, starting in told:
        now += seconds
        readings = [full(load, requests=requests) for load, requests in loads]
        wanted = own.decide(now, readings, starting)
        assert least <= wanted <= most


def test_a_share_of_the_time_that_can_never_be_too_much_is_refused() -> None:
    AutoscalerOptions(autoscale="utilisation", autoscale_target=0.9)
    with pytest.raises(ConfigError, match=r"--autoscale-target must be 0\.9 or less with"):
        AutoscalerOptions(autoscale="utilisation", autoscale_target=70.0)


def test_flags_without_a_signal_are_named() -> None:
    assert AutoscalerOptions().without_effect() == []
    assert AutoscalerOptions(autoscale="kv", min_replicas=3).without_effect() == []
    assert AutoscalerOptions(min_replicas=3).without_effect() == ["--min-replicas"]


def test_bounds_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="--min-replicas 4 is more than --max-replicas 3"):
        AutoscalerOptions(min_replicas=4, max_replicas=3)
