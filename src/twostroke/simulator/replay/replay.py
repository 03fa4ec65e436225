"""Both sides of a comparison, simulated with one cost model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from twostroke.core.config import PolicyName, SchedulerConfig
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.events import StartedRequest, StepEvent
from twostroke.observability.frames.columns import StepFrame, encode_steps
from twostroke.questions.replay import Replay, ReplayedRequest, ReplayJob, Settings, Side
from twostroke.routing.make_router import make_router
from twostroke.simulator.cost.estimate import CostModel
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.replay.fitted_cost import fit_cost
from twostroke.simulator.replay.machine_speed import MachineSpeed
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec
from twostroke.simulator.workloads.traces import CACHED_PREFIX

# Between the request that fills the prefix cache and the first that is replayed.
LEAD_SECONDS = 10_000.0
# Of a side's steps: what a screen shows.
MAX_STEPS, MAX_SHARES = 2048, 16_384
BLOCK_SIZE = 16  # where nobody knows


def replay(job: ReplayJob) -> Replay:
    """Fit the step times, and run the requests as they were served and as they might have been.

    Raises:
        ConfigError: Too few steps to fit step times to.
    """
    cost, fit = fit_cost(job.steps)
    speed = MachineSpeed(job.steps, cost)
    fit.speed = float(f"{speed.mean:.4g}")
    sides = [_run(job, settings, cost, speed) for settings in (job.recorded, job.other)]
    return Replay(fit, *sides)


def _run(job: ReplayJob, settings: Settings, cost: CostModel, speed: MachineSpeed) -> Side:
    """One side. The prefix cache holds at first what the recorded requests found in it."""
    requests = job.requests
    specs = _specs(requests, speed)
    longest = max(spec.total_tokens for spec in specs)
    block_size = job.block_size or BLOCK_SIZE
    enough = sum(-(-spec.total_tokens // block_size) for spec in specs)
    info = ExecutorInfo(
        model_id="replay",
        vocab_size=2,
        max_model_len=longest,
        num_blocks=max(job.num_blocks, -(-longest // block_size)) if job.num_blocks else enough,
        block_size=block_size,
    )
    config = SchedulerConfig(
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_prefill_chunk=settings.max_prefill_chunk,
        policy=cast(PolicyName, settings.policy),
        batching=settings.batching,
    )
    steps = KeptEvents()
    replica = Replica(SimulatedExecutor(info, cost, VirtualClock()), config, observers=[steps])
    fleet = Fleet(FixedPool([replica]), make_router("round-robin"), OpenLoop(specs), longest)
    results = {result.number: result for result in fleet.run().requests}
    shift = speed.work_at(requests[0].arrival) - LEAD_SECONDS

    def recorded(time: float) -> float:
        return speed.time_at(time + shift)

    events = [
        msgspec.structs.replace(
            event,
            time=(began := recorded(event.time)),
            duration=recorded(event.time + event.duration) - began,
        )
        for event in steps.events
        if event.time >= LEAD_SECONDS / 2
    ]
    gaps = _gaps(events)
    frame = encode_steps(events, max_steps=MAX_STEPS, max_shares=MAX_SHARES)
    _name(frame, requests)
    ended = [results.get(number) for number in range(len(requests))]
    return Side(
        settings,
        frame,
        [None if result is None else recorded(result.first_token) for result in ended],
        [None if result is None else recorded(result.finish) for result in ended],
        longest_gap=gaps[-1] if gaps else 0.0,
        p99_gap=gaps[len(gaps) * 99 // 100] if gaps else 0.0,
    )


def _specs(requests: Sequence[ReplayedRequest], speed: MachineSpeed) -> list[RequestSpec]:
    """The requests in order of arrival, from ``LEAD_SECONDS`` on; before, one fills the cache.

    Arrivals are in seconds of work.
    """
    begin = speed.work_at(requests[0].arrival)
    tenants = {request.tenant: 0 for request in requests}
    numbers = {tenant: number for number, tenant in enumerate(tenants)}
    specs = []
    if cached := max(request.cached for request in requests):
        specs.append(RequestSpec(len(requests), 0.0, cached + 1, 1, ((CACHED_PREFIX, cached),)))
    for number, request in enumerate(requests):
        segments = ((CACHED_PREFIX, request.cached),) if request.cached else ()
        specs.append(
            RequestSpec(
                number,
                LEAD_SECONDS + speed.work_at(request.arrival) - begin,
                request.prompt,
                request.output,
                segments,
                priority=request.priority,
                tenant=numbers[request.tenant],
            )
        )
    return specs


def _gaps(events: Sequence[StepEvent]) -> list[float]:
    """Seconds between two tokens of one request, of all requests, ascending."""
    last: dict[str, float] = {}
    gaps = []
    for event in events:
        end = event.time + event.duration
        for share in event.scheduled:
            if share.num_new_tokens:
                if (before := last.get(share.request_id)) is not None:
                    gaps.append(end - before)
                last[share.request_id] = end
    return sorted(gaps)


def _name(frame: StepFrame, requests: Sequence[ReplayedRequest]) -> None:
    """Give a frame the recording's ids."""
    frame.ids = [requests[int(name.removeprefix("r"))].request_id for name in frame.ids]
    for note in frame.notes:
        note.started = [_as_recorded(started, requests) for started in note.started]


def _as_recorded(started: StartedRequest, requests: Sequence[ReplayedRequest]) -> StartedRequest:
    request = requests[int(started.request_id.removeprefix("r"))]
    return msgspec.structs.replace(
        started,
        request_id=request.request_id,
        tenant=request.tenant,
        arrival_time=request.arrival,
    )
