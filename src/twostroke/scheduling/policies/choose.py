"""From the configuration's names to a policy."""

from __future__ import annotations

from twostroke.core.config import SchedulerConfig
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.policies.fair import FairPolicy
from twostroke.scheduling.policies.ranked import RankedPolicy, arrival_rank, priority_rank
from twostroke.scheduling.policies.static_batches import StaticBatches


def choose_policy(config: SchedulerConfig) -> SchedulingPolicy:
    """The policy that ``--policy`` and ``--batching`` name."""
    queue: SchedulingPolicy
    if config.policy == "fair":
        queue = FairPolicy(config.fair_input_weight, config.fair_output_weight)
    elif config.policy == "priority":
        queue = RankedPolicy(priority_rank)
    else:
        queue = RankedPolicy(arrival_rank)
    return StaticBatches(queue, config.max_num_seqs) if config.batching == "static" else queue
