"""What steps take, learned from steps: the prices are found, and outliers do not carry them off."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.timing.step_times import Prices, PromptWork, StepTimes, read_shape


def step(time: float, rows: int = 0, start: int = 0, prompt: int = 0) -> StepPlan:
    plan = StepPlan(0, time)
    for row in range(rows):
        plan.add(ScheduledRequest(f"row{row}", 50, 1, True))
    if prompt:
        plan.add(ScheduledRequest("prompt", start, prompt, True))
    return plan


class Machine:
    """A clock, and steps that take what they really cost."""

    def __init__(self, decode: float = 0.01, token: float = 3e-5, pair: float = 2e-8) -> None:
        self.times = StepTimes()
        self.prices = Prices(token, pair)
        self.decode = decode
        self.now = 0.0

    def seconds(self, rows: int, work: PromptWork) -> float:
        return (self.decode + 1e-4 * rows if rows else 0.0) + self.prices.seconds(work)

    def run(self, rows: int = 0, start: int = 0, prompt: int = 0, noise: float = 1.0) -> float:
        plan = step(self.now, rows, start, prompt)
        seconds = noise * self.seconds(*read_shape(plan))
        self.now += seconds
        self.times.observe(plan, self.now, busy=True)
        return seconds


def test_a_plan_is_read_as_rows_and_prompts() -> None:
    plan = step(0.0, rows=3, start=10, prompt=4)
    plan.add(ScheduledRequest("drafting", 7, 3, True, draft_token_ids=[1, 2]))
    assert read_shape(plan) == (6, PromptWork(4, 11 + 12 + 13 + 14))


def test_a_step_that_was_planned_ahead_begins_when_the_one_before_ends() -> None:
    """A GPU's passes of one second, each planned as the one before it begins."""
    times = StepTimes()
    for number in range(30):
        times.observe(step(max(0, number - 1), rows=1), number + 1, busy=True)
    assert times.of_decode(1) == pytest.approx(1.0)


def test_nothing_is_known_before_the_first_step() -> None:
    times = StepTimes()
    assert (times.of_decode(8), times.prices, times.knows_prompts) == (0.0, Prices(), False)


def test_prices_are_found() -> None:
    machine = Machine()
    for number in range(60):
        machine.run(rows=8)
        machine.run(rows=8, start=128 * (number % 30), prompt=64 + 8 * (number % 9))
    assert machine.times.of_decode(8) == pytest.approx(0.0108, rel=0.01)
    assert machine.times.prices.token == pytest.approx(3e-5, rel=0.02)
    assert machine.times.prices.pair == pytest.approx(2e-8, rel=0.02)


@given(
    chunks=st.lists(st.tuples(st.integers(0, 8000), st.integers(2, 2048)), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_prices_are_never_negative_nor_without_bound(
    chunks: list[tuple[int, int]], seed: int
) -> None:
    machine, random = Machine(), Random(seed)
    for start, prompt in chunks:
        machine.run(8, start, prompt, noise=random.uniform(0.5, 3.0))
        assert all(0 <= price < 10 for price in machine.times.prices)
        assert machine.times.prices.seconds(PromptWork.of(start, prompt)) > 0


def test_one_step_that_is_held_up_is_taken_for_chance() -> None:
    machine = Machine()
    for _ in range(20):
        machine.run(prompt=256)
    usual = machine.times.prices.seconds(PromptWork.of(0, 256))
    machine.run(prompt=256, noise=100.0)
    assert machine.times.prices.seconds(PromptWork.of(0, 256)) < 1.3 * usual


@given(
    seconds=st.floats(1e-4, 10),
    start=st.integers(0, 9000),
    pair=st.floats(0, 1e-6),
    token=st.floats(1e-6, 1e-3),
)
def test_the_largest_chunk_takes_just_as_long(
    seconds: float, start: int, pair: float, token: float
) -> None:
    """Closed form against the cost that it inverts."""
    prices = Prices(token, pair, step=1e-3)
    tokens = prices.most_tokens(seconds + 1e-3, start)
    spent = token * tokens + pair * (start * tokens + tokens * tokens / 2) + 1e-3
    seconds += 1e-3
    assert spent == pytest.approx(seconds, rel=1e-6)
    assert prices.most_tokens(-seconds, start) == 0


def test_the_gap_between_steps_counts() -> None:
    """A token comes once a step and gap: text and clients take their time between two passes."""
    times, now = StepTimes(), 0.0
    for _ in range(200):
        times.observe(step(now, rows=4), now + 0.01, busy=True)
        now += 0.012
    assert times.of_decode(4) == pytest.approx(0.012, rel=0.02)


def test_idle_time_is_no_gap() -> None:
    times = StepTimes()
    for second in range(10):
        times.observe(step(float(second), rows=4), second + 0.01, busy=False)
    assert times.of_decode(4) == pytest.approx(0.01)
