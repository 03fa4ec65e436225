"""From the configuration's names to a policy."""

from __future__ import annotations

from typing import assert_never

from twostroke.core.config import SchedulerConfig
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.policies.fair import FairPolicy
from twostroke.scheduling.policies.ranked import RankedPolicy, arrival_rank, priority_rank
from twostroke.scheduling.policies.static_batches import StaticBatches


def choose_policy(config: SchedulerConfig) -> SchedulingPolicy:
    """The policy that ``--policy`` and ``--batching`` name."""
    queue = _choose_queue(config)
    return StaticBatches(queue, config.max_num_seqs) if config.batching == "static" else queue


def _choose_queue(config: SchedulerConfig) -> SchedulingPolicy:
    match config.policy:
        case "fcfs":
            return RankedPolicy(arrival_rank)
        case "priority":
            return RankedPolicy(priority_rank)
        case "fair":
            return FairPolicy(config.fair_input_weight, config.fair_output_weight)
        case _:
            assert_never(config.policy)
