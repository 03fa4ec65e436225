"""The budget that keeps a target: bounded whatever happens, close to the best, and steady."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduling.harness import Harness, make_request
from tests.timing.test_step_times import Machine, step
from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import ConfigError
from twostroke.core.request import Request
from twostroke.core.step import Reason, StepResult
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.assemble import assemble_scheduler
from twostroke.scheduling.tuned_budget import LEAST_CHUNK, TunedBudget
from twostroke.timing.step_times import read_shape

MOST, TARGET = 2048, 0.04


class Loop:
    """Decoding rows beside one long prompt after the other, under a tuned budget."""

    def __init__(self, machine: Machine, target: float = TARGET, prompt: int = 8000) -> None:
        self.machine = machine
        self.budget = TunedBudget(MOST, target, machine.times)
        self.prompt = prompt
        self.start = 0
        self.budgets: list[int] = []
        self.seconds: list[float] = []

    def run(self, steps: int, rows: int = 8, noise: Random | None = None) -> None:
        for _ in range(steps):
            chunk = min(self.budget.tokens - rows, self.prompt - self.start)
            plan = step(self.machine.now, rows, self.start, max(2, chunk))
            rest = plan.num_tokens - rows
            factor = noise.uniform(0.9, 1.3) if noise else 1.0
            taken = factor * self.machine.seconds(*read_shape(plan))
            self.machine.now += taken
            self.start = 0 if self.start + rest >= self.prompt else self.start + rest
            self.budget.observe(plan, StepResult(), requests(rows, self.start), self.machine.now)
            self.budgets.append(self.budget.tokens)
            self.seconds.append(taken)


def requests(rows: int, start: int) -> list[Request]:
    """Those that run: so many that decode, and one whose prompt has come to ``start``."""
    running = []
    for row in range(rows):
        request = make_request(f"row{row}", [1, 2, 3])
        request.num_computed_tokens = 2
        running.append(request)
    prompt = make_request("prompt", list(range(9000)))
    prompt.num_computed_tokens = start
    return [*running, prompt]


def test_the_budget_converges_to_the_best() -> None:
    """After 40 steps each takes from 94 to 96 % of the target, but for the rests of prompts."""
    loop = Loop(Machine(pair=0.0))
    loop.run(80)
    full = [seconds for seconds in loop.seconds[40:] if seconds > 0.9 * TARGET]
    assert len(full) >= 30
    assert all(0.94 * TARGET < seconds < 0.96 * TARGET for seconds in full)


def test_long_contexts_make_smaller_chunks() -> None:
    loop = Loop(Machine(pair=6e-8))
    loop.run(400)
    settled = [s for s, budget in zip(loop.seconds[101:], loop.budgets[100:]) if budget > 300]
    assert settled and all(seconds <= 1.05 * TARGET for seconds in settled)


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_no_swing_after_a_change_of_speed(speed: float) -> None:
    """The machine is suddenly half or twice as fast: ten steps later the budget stays."""
    loop = Loop(Machine(pair=0.0), prompt=10**7)
    loop.run(60)
    prices = loop.machine.prices
    loop.machine.prices = prices._replace(token=prices.token / speed)
    loop.budgets.clear()
    loop.seconds.clear()
    loop.run(100)
    best = loop.budgets[-1]
    assert loop.seconds[-1] == pytest.approx(0.95 * TARGET, rel=0.02)
    assert max(loop.seconds[2:]) < 1.5 * TARGET
    assert all(abs(budget - best) < 0.05 * best for budget in loop.budgets[10:]), "it swings"
    turns = [b - a for a, b in pairwise(loop.budgets[10:]) if abs(b - a) > 0.01 * best]
    assert not turns, "it swings"


def test_rests_of_prompts_do_not_disturb_it() -> None:
    loop = Loop(Machine(pair=0.0))
    loop.run(60)
    prices = loop.machine.prices
    loop.machine.prices = prices._replace(token=2 * prices.token)
    loop.run(120)
    late = loop.budgets[-90:]
    assert max(late) < 1.1 * min(late)


def test_noise_does_not_shake_it_off() -> None:
    loop = Loop(Machine(pair=0.0))
    loop.run(400, noise=Random(1))
    late = loop.budgets[100:]
    assert max(late) < 1.6 * min(late)


@given(
    target=st.floats(1e-4, 1.0),
    rows=st.integers(0, 300),
    start=st.integers(0, 8000),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_bounded(target: float, rows: int, start: int, seed: int) -> None:
    random = Random(seed)
    machine = Machine()
    budget = TunedBudget(MOST, target, machine.times)
    for _ in range(30):
        plan = step(machine.now, rows, start, random.randint(2, 2048))
        machine.now += random.uniform(1e-6, 5.0)
        budget.observe(plan, StepResult(), requests(rows, start), machine.now)
        assert 1 <= budget.tokens <= MOST
        assert budget.tokens == MOST if not rows else budget.tokens >= min(MOST, rows + LEAST_CHUNK)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_steps_that_all_take_the_same(seconds: float) -> None:
    """Then tokens cost nothing: the budget grows with the chunks, or is the least."""
    machine = Machine()
    budget = TunedBudget(MOST, TARGET, machine.times)
    for number in range(60):
        plan = step(machine.now, 8, prompt=(256, 64, 512, 128)[number % 4])
        machine.now += seconds
        budget.observe(plan, StepResult(), requests(8, 0), machine.now)
    assert budget.tokens == 8 + LEAST_CHUNK if seconds > TARGET else budget.tokens > 8 + 512


def test_a_tighter_target_never_gives_more() -> None:
    machine = Machine()
    for number in range(40):
        machine.run(rows=8, start=100 * number, prompt=256)
    chosen = [
        TunedBudget(MOST, target, machine.times).choose(8, 1000)
        for target in (0.005, 0.01, 0.02, 0.04, 0.08, 1.0)
    ]
    assert chosen == sorted(chosen) and chosen[0] < chosen[3]


def test_the_scheduler_says_why() -> None:
    """A prompt that waits for the target's sake is told apart from one that the budget stops."""
    config = SchedulerConfig(tpot_target=1e-4, max_num_batched_tokens=512, max_num_seqs=4)
    kv = KVCacheManager(400, 4)
    harness = Harness(config, num_blocks=400)
    harness.kv = kv
    harness.scheduler = assemble_scheduler(config, kv, None).scheduler
    harness.scheduler.add(make_request("chat", [1, 2, 3], 40))
    for _ in range(3):
        harness.step()
    harness.scheduler.add(make_request("long", list(range(1000)), 2))
    for _ in range(4):
        harness.step()
    assert Reason.TPOT_TARGET in harness.reasons()
    assert harness.last.token_budget == 1 + LEAST_CHUNK
    assert harness.last.num_tokens == harness.last.token_budget
    harness.run()


@pytest.mark.parametrize(("text", "seconds"), [("40ms", 0.04), ("0.04s", 0.04), ("0.5", 0.5)])
def test_the_target_is_read(text: str, seconds: float) -> None:
    given: Any = text
    assert SchedulerConfig(tpot_target=given).tpot_target == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0", "0.00001", "-1ms", "40 min", "", "nan", True])
def test_a_target_that_is_none(text: Any) -> None:
    with pytest.raises(ConfigError, match="--tpot-target"):
        SchedulerConfig(tpot_target=text)
