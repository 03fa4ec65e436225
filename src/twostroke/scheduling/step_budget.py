"""The seam of token budgets: how many tokens the next step may carry."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.scheduling.tuned_budget import TunedBudget
from twostroke.timing.step_times import StepTimes


class StepBudget(Protocol):
    """Chooses each step's budget; pure. ``observe`` is called once after each step.

    Attributes:
        tokens: Most tokens of the next step, from 1 to ``max_num_batched_tokens``.
    """

    @property
    def tokens(self) -> int: ...

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        """Take in a step that ended at ``now``; ``running`` are those that run after it."""
        ...


class FixedBudget:
    """The same for each step.

    Args:
        times: Follows the steps, where something else asks how long they take.
    """

    def __init__(self, tokens: int, times: StepTimes | None = None) -> None:
        self.tokens = tokens
        self._times = times

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        if self._times is not None:
            failed = result.failure is not None
            self._times.observe(plan, now, busy=bool(running), failed=failed)


def choose_budget(config: SchedulerConfig, times: StepTimes) -> StepBudget:
    """The budget that ``--max-num-batched-tokens`` and ``--tpot-target`` name."""
    most = config.max_num_batched_tokens
    if config.tpot_target is not None:
        return TunedBudget(most, config.tpot_target, times)
    return FixedBudget(most, times if config.measures_steps else None)
