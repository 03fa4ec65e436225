"""Protects: every second of a step counts for exactly one component."""

from __future__ import annotations

import pytest

from twostroke.observability.profile import (
    ATTENTION,
    COMPONENTS,
    GEMM,
    NO_PROFILE,
    REST,
    SAMPLING,
    Profiler,
    StepProfiler,
)


class Step:
    """Each part takes a known time on a clock of its own."""

    def __init__(self) -> None:
        self.time = 0.0
        self.profiler: Profiler = StepProfiler(self.clock)

    def clock(self) -> float:
        return self.time

    def whole(self) -> str:
        with self.profiler.measure(REST):
            self.time += 1
            self.inner(2.0)
            self.time += 1
            self.inner(4.0)
            return "done"

    def inner(self, seconds: float) -> None:
        with self.profiler.measure(GEMM):
            self.time += seconds
            with self.profiler.measure(SAMPLING):
                self.time += 8


def taken(step: Step) -> dict[str, float]:
    assert isinstance(step.profiler, StepProfiler)
    return step.profiler.take()


def test_what_is_measured_inside_another_counts_for_itself_only() -> None:
    step = Step()
    assert step.whole() == "done"
    seconds = taken(step)
    assert list(seconds) == list(COMPONENTS)
    assert (seconds[REST], seconds[GEMM], seconds[SAMPLING]) == (2, 6, 16)
    assert sum(seconds.values()) == step.time == 24
    assert sum(taken(step).values()) == 0


def test_credited_seconds_are_taken_off_the_open_measurement() -> None:
    step = Step()
    with step.profiler.measure(GEMM):
        step.time += 5
        step.profiler.credit(ATTENTION, 3)
    seconds = taken(step)
    assert (seconds[GEMM], seconds[ATTENTION]) == (2, 3)


def test_a_part_that_raises_is_measured() -> None:
    step = Step()
    with pytest.raises(KeyError), step.profiler.measure(GEMM):
        step.time += 5
        raise KeyError("gone")
    with step.profiler.measure(REST):
        step.time += 8
    seconds = taken(step)
    assert (seconds[GEMM], seconds[REST]) == (5, 8)


def test_another_clock_takes_over() -> None:
    profiler = StepProfiler(lambda: 1.0)
    ticks = iter((10.0, 17.0))
    profiler.use_clock(lambda: next(ticks))
    with profiler.measure(GEMM):
        pass
    assert profiler.take()[GEMM] == 7


def test_without_a_profile_no_clock_is_read() -> None:
    def clock() -> float:
        raise AssertionError("the clock was read")

    NO_PROFILE.use_clock(clock)
    with NO_PROFILE.measure(REST), NO_PROFILE.measure(GEMM):
        NO_PROFILE.credit(ATTENTION, 1.0)
    with pytest.raises(KeyError), NO_PROFILE.measure(REST):
        raise KeyError("not swallowed")
    assert not NO_PROFILE.enabled
