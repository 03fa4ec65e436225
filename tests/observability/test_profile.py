"""Protects: every second of a step counts for exactly one component."""

from __future__ import annotations

from twostroke.observability.profile import ATTENTION, COMPONENTS, GEMM, REST, SAMPLING, Profiler


class Step:
    """Each part takes a known time on a clock of its own."""

    def __init__(self) -> None:
        self.time = 0.0
        self.width = 3

    def clock(self) -> float:
        return self.time

    def whole(self) -> str:
        self.time += 1
        self.inner(2.0)
        self.time += 1
        self.inner(4.0)
        return "done"

    def inner(self, seconds: float) -> None:
        self.time += seconds
        self.innermost()

    def innermost(self) -> None:
        self.time += 8


def test_what_runs_inside_another_counts_for_itself_only() -> None:
    step = Step()
    profiler = Profiler(step.clock)
    profiler.replace(step, "innermost", SAMPLING)
    profiler.replace(step, "inner", GEMM)
    profiler.replace(step, "whole", REST)
    assert step.whole() == "done"
    seconds = profiler.take()
    assert list(seconds) == list(COMPONENTS)
    assert (seconds[REST], seconds[GEMM], seconds[SAMPLING]) == (2, 6, 16)
    assert sum(seconds.values()) == step.time == 24
    assert sum(profiler.take().values()) == 0


def test_seconds_that_a_call_knows_of_itself_are_taken_off_it() -> None:
    step = Step()
    profiler = Profiler(step.clock)

    def kernels() -> None:
        step.time += 5
        profiler.credit(ATTENTION, 3)

    profiler.call(GEMM, kernels)
    seconds = profiler.take()
    assert (seconds[GEMM], seconds[ATTENTION]) == (2, 3)


def test_a_call_that_raises_is_timed_and_raises() -> None:
    step = Step()
    profiler = Profiler(step.clock)

    def fails() -> None:
        step.time += 5
        raise KeyError("gone")

    try:
        profiler.call(GEMM, fails)
    except KeyError:
        pass
    else:
        raise AssertionError("the error was swallowed")
    profiler.call(REST, step.innermost)
    seconds = profiler.take()
    assert (seconds[GEMM], seconds[REST]) == (5, 8)


def test_a_stand_in_shows_what_it_stands_for() -> None:
    profiler = Profiler()
    holder = Step()
    holder.__dict__["part"] = Step()
    profiler.replace(holder, "part", GEMM)
    assert holder.__dict__["part"].width == 3
