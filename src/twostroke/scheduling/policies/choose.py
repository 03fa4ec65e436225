"""From the configuration's names to a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.policies.deadline import DeadlinePolicy
from twostroke.scheduling.policies.fair import FairPolicy
from twostroke.scheduling.policies.ranked import RankedPolicy, arrival_rank, priority_rank
from twostroke.scheduling.policies.static_batches import StaticBatches
from twostroke.timing.step_times import StepTimes


def choose_policy(
    config: SchedulerConfig,
    times: StepTimes | None = None,
    num_cached: Callable[[Request], int] = lambda request: 0,
) -> SchedulingPolicy:
    """The policy that ``--policy`` and ``--batching`` name.

    Args:
        times: What steps take; without it, policy ``deadline`` goes by targets alone.
        num_cached: Prompt tokens of a waiting request that the prefix cache holds.
    """
    queue = _choose_queue(config, times or StepTimes(), num_cached)
    return StaticBatches(queue, config.max_num_seqs) if config.batching == "static" else queue


def _choose_queue(
    config: SchedulerConfig, times: StepTimes, num_cached: Callable[[Request], int]
) -> SchedulingPolicy:
    match config.policy:
        case "fcfs":
            return RankedPolicy(arrival_rank)
        case "priority":
            return RankedPolicy(priority_rank)
        case "fair":
            return FairPolicy(config.fair_input_weight, config.fair_output_weight)
        case "deadline":
            return DeadlinePolicy(times, num_cached)
        case _:
            assert_never(config.policy)
