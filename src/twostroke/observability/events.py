"""Step events: one schema for the live engine, a recorded file and the simulator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStats:
    """The scheduler's state between two steps. Prefix-cache figures are totals in tokens."""

    num_running: int
    num_waiting: int
    total_blocks: int
    free_blocks: int
    cached_blocks: int
    allocated_slots: int
    used_slots: int
    prefix_queries: int
    prefix_hits: int
    num_preemptions: int
