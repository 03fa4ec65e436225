"""Value, verdict and burn rate against a plain sort; the requests that missed most."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.observability.runs import make_request
from twostroke.core.targets import parse_target
from twostroke.observability.targets.watch import NUM_WORST, TargetWatch

SECONDS = st.floats(0.0001, 100.0)


@given(
    st.lists(st.tuples(st.integers(0, 90), SECONDS), min_size=1, max_size=60),
    st.sampled_from([50, 90, 95, 99]),
    st.sampled_from([0.3, 1.0, 17.0]),
)
@settings(max_examples=200)
def test_against_a_sorted_list(
    observations: list[tuple[int, float]], percentile: int, limit: float
) -> None:
    watch, now = TargetWatch(parse_target(f"ttft=p{percentile}:{limit}")), 0
    events: list[tuple[int, float]] = []
    for gap, value in observations:
        now += gap
        watch.observe(value, now, make_request())
        events.append((now, value))
    for window in watch.report(now).windows:
        slot = window.seconds // 60
        values = sorted(v for second, v in events if second // slot > now // slot - 60)
        misses = sum(value > limit for value in values)
        assert (window.observations, window.misses) == (len(values), misses)
        exact = values[math.ceil(Fraction(percentile, 100) * len(values)) - 1]
        assert window.value == pytest.approx(exact, rel=0.0101)
        assert window.verdict == ("met" if exact <= limit else "missed")
        assert window.value is not None and (window.value <= limit) == (exact <= limit)
        share = misses / len(values)
        assert window.burn_rate == pytest.approx(share / (1 - percentile / 100))


def test_exactly_as_many_misses_as_allowed_are_met() -> None:
    """Where shares were floats, 0.1 of 10 requests would be less than one."""
    watch = TargetWatch(parse_target("ttft=p90:1"))
    for value in [0.5] * 9 + [2.0]:
        watch.observe(value, 5.0, make_request())
    assert {window.verdict for window in watch.report(5.0).windows} == {"met"}
    watch.observe(2.0, 5.0, make_request())
    assert {window.verdict for window in watch.report(5.0).windows} == {"missed"}


def test_a_miss_leaves_one_window_after_the_other() -> None:
    watch = TargetWatch(parse_target("errors=0.25"))
    watch.observe(1.0, 0.0, make_request())
    for now, verdicts in (
        (59, ["missed"] * 3),
        (60, ["unknown", "missed", "missed"]),
        (300, ["unknown", "unknown", "missed"]),
        (3600, ["unknown"] * 3),
    ):
        report = watch.report(float(now))
        assert [window.verdict for window in report.windows] == verdicts
        assert report.verdict == verdicts[1]
    assert (report.total_observations, report.total_misses) == (1, 1)
    assert [window.burn_rate for window in report.windows] == [0, 0, 0]


def test_errors_burn_by_their_share() -> None:
    watch = TargetWatch(parse_target("errors=0.01"))
    for failed in [0.0] * 19 + [1.0]:
        watch.observe(failed, 1.0, make_request())
    window = watch.report(1.0).windows[0]
    assert window.value == 0.05
    assert window.burn_rate == pytest.approx(5.0)


def test_a_state_counts_by_time() -> None:
    watch = TargetWatch(parse_target("queue=p90:25"))
    watch.hold(0, 0.0)
    watch.hold(26, 53.0)  # one step after another shows the same queue
    watch.hold(26, 53.5)
    watch.hold(3, 59.0)
    window, *_ = watch.report(59.5).windows
    assert (window.observations, window.misses) == (59.5, 6.0)
    assert (window.value, window.verdict) == (26, "missed")
    report = watch.report(600.0)
    assert report.windows[0].value == 3 and report.windows[0].verdict == "met"
    assert (report.total_observations, report.total_misses) == (600, 6)


@given(st.lists(st.tuples(st.integers(0, 200), SECONDS), max_size=150))
@settings(max_examples=50)
def test_the_worst_of_the_last_hour(observations: list[tuple[int, float]]) -> None:
    watch, now = TargetWatch(parse_target("ttft=p95:1")), 0
    events: list[tuple[float, int, str]] = []
    for number, (gap, value) in enumerate(observations):
        now += gap
        watch.observe(value, now, make_request(f"r{number}"))
        events.append((value, now, f"r{number}"))
    kept = [event for event in events if event[0] > 1 and event[1] // 60 > now // 60 - 60]
    kept.sort(key=lambda event: -event[0])
    worst = watch.report(now).worst
    assert [(miss.value, now - miss.seconds_ago, miss.request_id) for miss in worst] == kept[
        :NUM_WORST
    ]
