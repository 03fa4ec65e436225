"""Protects: drafts are back soon after a cold start, one bad answer or one slow reading."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.scheduling.test_adaptive_depth import MOST, Machine
from twostroke.core.step import StepPlan, StepResult
from twostroke.scheduling.adaptive_depth import AdaptiveDepth
from twostroke.scheduling.speculation import FixedDepth

# Tokens of answers that could be guessed before drafts must have come back.
SOON = 32
# What 20 ms are on a model that decodes 2,800 tokens a second, in its passes.
HICCUP = 57.0


def pilot_like(rows: int) -> float:
    """A second more row costs a fifth of a pass, as on pilot."""
    return 0.8 + 0.2 * rows


class Scripted(Machine):
    """Drafting takes longer at times that are given.

    Attributes:
        delays: Seconds that the next draftings of a depth take besides, by depth; of any depth at
            0.
    """

    delays: dict[int, list[float]]

    def drafting(self, depth: int) -> float:
        if not depth:
            return 0.0
        delay = 0.0
        for key in (0, depth):
            if left := self.delays.get(key):
                delay += left.pop(0)
        return super().drafting(depth) + delay


def answer(
    depth: AdaptiveDepth,
    rates: Sequence[float],
    tokens: int,
    *,
    draft_time: float = 0.3,
    reading: float = 0.0,
    delays: dict[int, list[float]] | None = None,
) -> int:
    """One answer for each of ``rates``. Returns how many tokens the first ones had before drafts
    came, or all."""
    machine = Scripted(depth, list(rates), pilot_like, draft_time, reading=reading)
    machine.delays = delays or {}
    before = None
    while machine.tokens < tokens * len(rates):
        if before is None and machine.num_drafts:
            before = machine.tokens // len(rates)
        machine.run(1)
    names = [request.request_id for request in machine.requests]
    depth.observe(StepPlan(0, 0.0, released=names), StepResult())
    return tokens if before is None else before


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("cold", [30.0, 250.0])
def test_a_cold_start_of_each_depth_locks_nothing_out(cold: float, times: int) -> None:
    """Medusa's heads: the first guesses of each number set things up, for up to 90 ms."""
    machine = Scripted(AdaptiveDepth(4), [1.0], pilot_like, 0.05)
    machine.delays = {depth: [cold] * times for depth in range(1, 5)}
    machine.run(64)
    best = max(Machine(FixedDepth(k), [1.0], pilot_like, 0.05).run(100) for k in range(5))
    assert machine.run(100) > 0.9 * best


@pytest.mark.parametrize("times", [3, 6])
def test_drafting_that_was_slow_several_times_is_measured_again(times: int) -> None:
    """On a machine that others use: the wait doubles while it is confirmed."""
    machine = Scripted(AdaptiveDepth(4), [1.0], pilot_like, 0.05)
    machine.delays = {0: [300.0] * times}
    machine.run(SOON * 2 ** (times - 1))
    assert machine.run(100) > 2 * Machine(FixedDepth(0), [1.0], pilot_like).run(100)


@pytest.mark.parametrize("num_good", [0, 5])
@pytest.mark.parametrize("draft_time", [0.1, 0.5])
@pytest.mark.parametrize("reading", [0.0, 5.0, 20.0])
def test_one_answer_that_cannot_be_guessed_switches_nothing_off(
    reading: float, draft_time: float, num_good: int
) -> None:
    depth = AdaptiveDepth(MOST, reads_prompts=reading > 0)
    for _ in range(num_good):
        answer(depth, [0.95], 100, draft_time=draft_time, reading=reading)
    answer(depth, [0.0], 200, draft_time=draft_time, reading=reading)
    assert answer(depth, [0.95], 1000, draft_time=draft_time, reading=reading) <= SOON


@pytest.mark.parametrize("reads_prompts", [False, True])
@pytest.mark.parametrize("num_good", [0, 5])
def test_one_hiccup_switches_nothing_off(num_good: int, reads_prompts: bool) -> None:
    """While drafts are made, in a step that was otherwise as all others."""
    depth = AdaptiveDepth(MOST, reads_prompts=reads_prompts)
    for _ in range(num_good):
        answer(depth, [0.95], 60)
    answer(depth, [0.95], 16, delays={0: [0.0, 0.0, HICCUP]})
    assert answer(depth, [0.95], 1000) <= SOON


@pytest.mark.parametrize("num_hard", [1, 2, 4, 8])
def test_the_wait_grows_with_the_answers_in_a_row_that_could_not_be_guessed(num_hard: int) -> None:
    depth = AdaptiveDepth(MOST, reads_prompts=True)
    for _ in range(num_hard):
        answer(depth, [0.0], 200, reading=20.0)
    assert answer(depth, [0.95], 5000, reading=20.0) <= SOON * 2 ** (num_hard - 1)
