"""KV slots allocated and unused on the Azure traces.

The real scheduler and KV manager run under a virtual clock.
"""

from __future__ import annotations

import csv
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.claims.report import Claim
from benchmarks.claims.workbench import Workbench
from twostroke.core.config import SchedulerConfig
from twostroke.core.generation_request import ResolvedRequest
from twostroke.core.request import Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.step import StepPlan, StepResult
from twostroke.kv_cache.check_fits import check_fits
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.scheduler import Scheduler

TARGET = 0.04
CLAIM = "KV slots allocated but unused on the Azure traces, time-weighted mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Roughly an 8B model on one 80 GB GPU: seconds of a step, and more for each token."""

    traces: tuple[str, ...] = ("code", "conv")
    block_size: int = 16
    num_blocks: int = 28_000
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    step_seconds: float = 0.01
    token_seconds: float = 50e-6


class Arrival(NamedTuple):
    time: float
    prompt: int
    output: int


@dataclass(slots=True)
class Waste:
    """Slots over time: allocated, unused, and unused had final lengths been reserved."""

    seconds: float = 0.0
    share: float = 0.0
    highest: float = 0.0
    highest_when_busy: float = 0.0
    allocated: float = 0.0
    unused: float = 0.0
    reserved: float = 0.0
    used: float = 0.0
    most_running: int = 0
    requests: int = 0
    steps: int = 0

    @property
    def mean(self) -> float:
        """Mean over the time in which anything runs of unused / allocated."""
        return self.share / self.seconds

    @property
    def mean_if_reserved(self) -> float:
        """The same, had each request held its final length from its first step on."""
        return 1 - self.used / self.reserved


def measure(bench: Workbench, load: Workload | None = None) -> Claim:
    load = load or Workload()
    paths = {name: bench.traces / f"azure_splitwise_{name}.csv" for name in load.traces}
    conditions = (
        f"block size {load.block_size}, {load.num_blocks:,} blocks, --max-num-seqs"
        f" {load.max_num_seqs}, --max-num-batched-tokens {load.max_num_batched_tokens}, all"
        " requests at their times of arrival, none sharing a prefix, real scheduler and KV"
        f" manager, virtual clock ({1e3 * load.step_seconds:g} ms a step and"
        f" {1e6 * load.token_seconds:g} us a token)"
    )
    target = f"under {TARGET:.0%} on each"
    if missing := [str(path) for path in paths.values() if not path.is_file()]:
        skipped = f"skipped: no {' and no '.join(missing)} (give --data)"
        return Claim(
            name="kv_waste", claim=CLAIM, measured=skipped, conditions=conditions, target=target
        )
    waste_by_trace: dict[str, Waste] = {}
    for name, path in paths.items():
        bench.say(f"KV waste: trace {name}")
        waste_by_trace[name] = replay(read_trace(path), load)
    return Claim(
        name="kv_waste",
        claim=CLAIM,
        measured="; ".join(f"{name} {_text(waste)}" for name, waste in waste_by_trace.items()),
        conditions=conditions,
        target=target,
        met=all(waste.mean < TARGET for waste in waste_by_trace.values()),
        figures={name: _figures(waste) for name, waste in waste_by_trace.items()},
    )


def read_trace(path: Path) -> list[Arrival]:
    with path.open(newline="") as file:
        return [
            Arrival(
                float(row["arrived_at"]),
                int(row["num_prefill_tokens"]),
                int(row["num_decode_tokens"]),
            )
            for row in csv.DictReader(file)
        ]


def replay(trace: list[Arrival], load: Workload) -> Waste:
    """Run a trace to its end; a pass over the model takes as long as the load says."""
    config = SchedulerConfig(
        max_num_seqs=load.max_num_seqs, max_num_batched_tokens=load.max_num_batched_tokens
    )
    kv = KVCacheManager(load.num_blocks, load.block_size)
    scheduler = Scheduler(config, kv, choose_policy(config))
    waiting = deque(enumerate(trace))
    waste, now = Waste(requests=len(trace)), 0.0
    while waiting or scheduler.has_work():
        if not scheduler.has_work():
            now = max(now, waiting[0][1].time)
        while waiting and waiting[0][1].time <= now:
            request = _request(*waiting.popleft())
            check_fits(request.max_total_tokens, load.num_blocks, load.block_size)
            scheduler.add(request)
        plan = scheduler.schedule(now)
        seconds = load.step_seconds + load.token_seconds * plan.num_tokens
        _observe(waste, scheduler, plan, seconds)
        now += seconds
        samples = {request_id: [0] for request_id, item in plan.scheduled.items() if item.samples}
        scheduler.update(plan, StepResult(token_ids=samples, duration=seconds), now)
    assert kv.pool.num_free == load.num_blocks, "blocks were lost"
    return waste


def _request(index: int, arrival: Arrival) -> Request:
    # A salt of its own: the traces do not say which prompts are alike.
    spec = ResolvedRequest(
        request_id=str(index),
        parent_id=str(index),
        prompt_token_ids=bytes(arrival.prompt),
        params=SamplingParams(max_tokens=arrival.output, ignore_eos=True, detokenize=False),
        max_total_tokens=arrival.prompt + arrival.output,
        cache_salt=str(index),
    )
    return Request(spec, arrival_time=arrival.time)


def _observe(waste: Waste, scheduler: Scheduler, plan: StepPlan, seconds: float) -> None:
    """Add a pass, in which every slot counts as used that holds a token or is being written."""
    kv = scheduler.kv
    allocated = (kv.pool.num_blocks - kv.pool.num_free) * kv.block_size
    running = scheduler.running.values()
    unused = kv.num_unused_slots(running) - sum(
        item.num_tokens
        for request_id, item in plan.scheduled.items()
        if request_id in scheduler.running
    )
    reserved = sum(request.max_total_tokens for request in running)
    share = unused / allocated
    waste.seconds += seconds
    waste.share += share * seconds
    waste.highest = max(waste.highest, share)
    # With one short request alone, its last block is most of what there is.
    if allocated >= kv.pool.num_blocks * kv.block_size / 100:
        waste.highest_when_busy = max(waste.highest_when_busy, share)
    waste.allocated += allocated * seconds
    waste.unused += unused * seconds
    waste.reserved += reserved * seconds
    waste.used += (allocated - unused) * seconds
    waste.most_running = max(waste.most_running, len(scheduler.running))
    waste.steps += 1


def _text(waste: Waste) -> str:
    return (
        f"{waste.mean:.2%} (max {waste.highest:.1%}, and {waste.highest_when_busy:.1%} while 1 % or"
        " more of the blocks are held; reserving each request's final length would waste"
        f" {waste.mean_if_reserved:.1%}; {waste.requests:,} requests, up to {waste.most_running} at"
        " once)"
    )


def _figures(waste: Waste) -> dict[str, float]:
    return {
        "requests": waste.requests,
        "steps": waste.steps,
        "busy_seconds": waste.seconds,
        "time_weighted_mean": waste.mean,
        "unused_slots_over_allocated_slots": waste.unused / waste.allocated,
        "max": waste.highest,
        "max_with_1_percent_in_use": waste.highest_when_busy,
        "waste_if_final_length_were_reserved": waste.mean_if_reserved,
        "most_running": waste.most_running,
    }
