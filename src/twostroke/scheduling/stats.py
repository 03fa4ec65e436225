"""The scheduler's state at one moment, in numbers."""

from __future__ import annotations

from twostroke.observability.events import SchedulerStats
from twostroke.scheduling.scheduler import Scheduler


def read_stats(scheduler: Scheduler) -> SchedulerStats:
    """Count what runs, what waits, and what the KV cache holds."""
    kv, running = scheduler.kv, scheduler.running.values()
    num_slots = (kv.pool.num_blocks - kv.pool.num_free) * kv.block_size
    return SchedulerStats(
        num_running=len(running),
        num_waiting=len(scheduler.requests) - len(running),
        num_deferred=scheduler.waiting.num_aside,
        total_blocks=kv.pool.num_blocks,
        free_blocks=kv.pool.num_free,
        cached_blocks=kv.pool.num_cached,
        allocated_slots=num_slots,
        used_slots=max(0, num_slots - kv.num_unused_slots(running)),
        prefix_queries=kv.prefix_queries,
        prefix_hits=kv.prefix_hits,
        num_preemptions=scheduler.batch.num_preemptions,
        tiers=scheduler.tiers.stats(),
    )
