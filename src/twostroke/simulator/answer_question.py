"""``python -m twostroke.simulator.answer_question``: questions of pages, their answers to stdout.

The scheduler is the engine's own, the times are the cost model's. Question and answer:
``questions/small_run.py``.
"""

from __future__ import annotations

import os
import select
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import msgspec

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.core.errors import TwostrokeError
from twostroke.observability.events import StepEvent
from twostroke.questions.small_run import (
    ANSWERED,
    IDLE_SECONDS,
    REFUSED,
    AskedRun,
    Device,
    RequestRun,
    RunShares,
    RunSteps,
    SimulatedRun,
)
from twostroke.routing.routers import make_router
from twostroke.simulator.deployment.deployment import Deployment, deploy
from twostroke.simulator.deployment.options import DeploymentOptions
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.kept_events import KeptEvents
from twostroke.simulator.fleet.make_replicas import replica_maker
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec

NICENESS = 10


def answer_question(asked: AskedRun) -> SimulatedRun:
    """Simulate the run that is asked for.

    Raises:
        TwostrokeError: The model does not fit onto its devices, or cannot be split over them.
    """
    options, cache, scheduler, deployment = _deploy(asked)
    watching = [KeptEvents() for _ in range(asked.replicas)]
    make = replica_maker(
        deployment, options, cache, scheduler, observers=[[events] for events in watching]
    )
    pool = FixedPool([make(number) for number in range(asked.replicas)])
    router = make_router(options.router)
    fleet = Fleet(pool, router, OpenLoop(_specs(asked)), deployment.max_model_len)
    return _sum_up(asked, deployment, fleet.run(), watching)


def _deploy(
    asked: AskedRun,
) -> tuple[DeploymentOptions, CacheConfig, SchedulerConfig, Deployment]:
    options = DeploymentOptions(
        model=asked.model,
        gpu=asked.gpu,
        tp=asked.tp,
        replicas=asked.replicas,
        speculative_tokens=asked.speculative_tokens,
        acceptance=asked.acceptance,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=asked.max_num_seqs,
        max_num_batched_tokens=asked.max_num_batched_tokens,
        batching=asked.batching,
    )
    cache = CacheConfig(
        block_size=asked.block_size, enable_prefix_caching=asked.enable_prefix_caching
    )
    deployment = deploy(options, cache, scheduler)
    if asked.kv_tokens is not None:
        memory = round(asked.kv_tokens * deployment.info.kv_bytes_per_token)
        cache = replace(cache, kv_cache_memory=memory)
        deployment = deploy(options, cache, scheduler)
    return options, cache, scheduler, deployment


def _specs(asked: AskedRun) -> list[RequestSpec]:
    """The requests in order of arrival; each keeps its place in the question as its number."""
    specs = [
        RequestSpec(
            number=number,
            arrival=request.arrival,
            prompt_tokens=request.prompt,
            output_tokens=request.output,
            segments=((request.group, request.prefix),) if request.prefix else (),
        )
        for number, request in enumerate(asked.requests)
    ]
    return sorted(specs, key=lambda spec: spec.arrival)


def _sum_up(
    asked: AskedRun, deployment: Deployment, result: FleetResult, watching: list[KeptEvents]
) -> SimulatedRun:
    events = sorted(
        ((event, replica) for replica, kept in enumerate(watching) for event in kept.events),
        key=lambda pair: pair[0].time,
    )
    steps, shares = RunSteps(), RunShares()
    tokens = defaultdict[int, list[float]](list)  # when each request got its tokens
    for row, (event, replica) in enumerate(events):
        _append_step(steps, event, replica)
        for share in event.scheduled:
            number = int(share.request_id.removeprefix("r"))
            shares.step.append(row)
            shares.request.append(number)
            shares.prompt.append(share.num_prompt_tokens)
            shares.new.append(share.num_new_tokens)
            shares.drafts.append(share.num_drafts)
            shares.accepted.append(share.num_accepted_drafts)
            if share.num_new_tokens:
                tokens[number].append(steps.end[-1])
    sheet, info = deployment.hardware, deployment.info
    return SimulatedRun(
        seconds=max(steps.end, default=0.0),
        device=Device(
            title=sheet.title,
            memory_bytes=sheet.memory_bytes,
            memory_bandwidth=sheet.memory_bandwidth,
            flops=sheet.dense_flops[deployment.cost.compute_format],
            weight_bytes=deployment.weight_bytes,
            kv_bytes_per_token=info.kv_bytes_per_token,
            num_blocks=info.num_blocks,
            block_size=info.block_size,
            price_per_hour=sheet.price_per_hour,
        ),
        requests=[
            RequestRun(
                number=done.number,
                replica=done.replica,
                arrival=done.arrival,
                scheduled=done.scheduled,
                first_token=done.first_token,
                finish=done.finish,
                ttft=done.ttft,
                tpot=done.tpot,
                worst_gap=_worst_gap(tokens[done.number]),
                cached=done.cached_tokens,
                preemptions=done.preemptions,
            )
            for done in result.requests
        ],
        steps=steps,
        shares=shares,
        refused=result.refused,
    )


def _append_step(steps: RunSteps, event: StepEvent, replica: int) -> None:
    steps.replica.append(replica)
    steps.begin.append(event.time)
    steps.end.append(event.time + event.duration)
    steps.tokens.append(event.num_tokens)
    steps.prompt.append(event.num_prompt_tokens)
    steps.new.append(sum(share.num_new_tokens for share in event.scheduled))
    steps.running.append(event.num_running)
    steps.waiting.append(event.num_waiting)
    steps.free.append(event.free_blocks)
    steps.waste.append(round(event.kv_waste, 4))


def _worst_gap(times: list[float]) -> float:
    return max((late - early for early, late in pairwise(times)), default=0.0)


def main() -> None:
    """The process: a question a line from stdin, until they end or none comes for a while."""
    os.nice(NICENESS)
    while select.select([sys.stdin.fileno()], [], [], IDLE_SECONDS)[0]:
        question = sys.stdin.buffer.readline()
        if not question:
            return
        try:
            asked = msgspec.json.decode(question, type=AskedRun)
            line = ANSWERED + msgspec.json.encode(answer_question(asked))
        except TwostrokeError as error:
            line = REFUSED + msgspec.json.encode(error.message)
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
