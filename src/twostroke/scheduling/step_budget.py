"""The token budget that a configuration names."""

from __future__ import annotations

from collections.abc import Collection

from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.scheduling.parts import StepBudget
from twostroke.scheduling.plain_parts import FixedBudget
from twostroke.scheduling.tuned_budget import TunedBudget
from twostroke.timing.step_times import StepTimes


class MeasuredBudget(FixedBudget):
    """A fixed budget whose steps are timed, since something else asks for the times."""

    def __init__(self, tokens: int, times: StepTimes) -> None:
        super().__init__(tokens)
        self._times = times

    def observe(
        self, plan: StepPlan, result: StepResult, running: Collection[Request], now: float
    ) -> None:
        failed = result.failure is not None
        self._times.observe(plan, now, busy=bool(running), failed=failed)


def choose_budget(config: SchedulerConfig, times: StepTimes) -> StepBudget:
    """The budget that ``--max-num-batched-tokens`` and ``--tpot-target`` name."""
    most = config.max_num_batched_tokens
    if config.tpot_target is not None:
        return TunedBudget(most, config.tpot_target, times)
    return MeasuredBudget(most, times) if config.measures_steps else FixedBudget(most)
