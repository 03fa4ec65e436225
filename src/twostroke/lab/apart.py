"""Prefill and decode on devices of their own, simulated: two pools and a link between them.

The scheduler of each pool is the one that serves. A device that only decodes gets its prompts
computed: they take room in its KV cache, and no time but that of the link.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from twostroke.core.config import CacheConfig, SchedulerConfig
from twostroke.lab.devices import Placed
from twostroke.routing.routers import make_router
from twostroke.simulator.cost.estimate import CostModel, Estimate
from twostroke.simulator.deployment.deployment import deploy
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.executor import SimulatedExecutor
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.make_replicas import replica_maker
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.workloads.base import OpenLoop, RequestSpec
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions
from twostroke.timing.step_shape import StepShape

RUNNING = 256
PREFILL_BUDGET = 8192
# Of a device that computes no prompts: any number of them may arrive in a step.
NO_BUDGET = 2**20


@dataclass(frozen=True, slots=True)
class Served:
    """What one request saw, in seconds. ``tpot`` counts the link and the wait behind it."""

    ttft: float
    tpot: float


class PromptsArriveComputed:
    """Implements ``CostModel`` for a device whose prompts another device has computed."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost

    def step(self, shape: StepShape) -> Estimate:
        """The step as if each prompt's last token were one more that decodes."""
        if shape.prefill:
            context = shape.decode_context + sum(new + cached for new, cached in shape.prefill)
            requests = shape.decode_requests + len(shape.prefill)
            shape = StepShape(requests, context, (), shape.sampled)
        return self._cost.step(shape)


def requests_at(
    rate: float, prompt: int, answer: int, count: int = 200, seed: int = 0
) -> list[RequestSpec]:
    """Requests with Poisson arrivals and long-tailed lengths; of two tokens at least."""
    options = SimulatedWorkloadOptions(
        workload="random",
        num_requests=count,
        rate=rate,
        input_len=prompt,
        input_p95=2 * prompt,
        output_len=answer,
        output_p95=2 * answer,
        seed=seed,
    )
    return [
        RequestSpec(
            number=spec.number,
            arrival=spec.arrival,
            prompt_tokens=spec.prompt_tokens,
            output_tokens=max(2, spec.output_tokens),
        )
        for spec in make_workload(options).workload.arrivals()
    ]


def serve_together(
    placed: Placed, specs: Sequence[RequestSpec], budget: int, replicas: int = 2
) -> list[Served]:
    """Replicas that do both, in turn."""
    result = _run(placed, specs, budget, replicas)
    return [Served(done.ttft, done.tpot) for done in result.requests]


def serve_apart(placed: Placed, specs: Sequence[RequestSpec], link: float) -> list[Served]:
    """One replica that computes prompts, and one that decodes.

    Args:
        link: Bytes per second between them; caches cross it one after the other.
    """
    prompts = [
        RequestSpec(spec.number, spec.arrival, spec.prompt_tokens, output_tokens=1)
        for spec in specs
    ]
    computed = _run(placed, prompts, PREFILL_BUDGET, 1)
    by_number = {spec.number: spec for spec in specs}
    per_token = placed.cost.model.kv_bytes_per_token("bf16")
    free, first, moved = 0.0, {}, []
    for done in sorted(computed.requests, key=lambda done: done.finish):
        spec = by_number[done.number]
        first[spec.number] = done.finish
        free = max(free, done.finish) + per_token * spec.prompt_tokens / link
        # The first token came with the prompt; it is one that the next device has to read.
        moved.append(RequestSpec(spec.number, free, spec.prompt_tokens + 1, spec.output_tokens - 1))
    decoded = _decode(placed, moved)
    return [
        Served(
            first[done.number] - by_number[done.number].arrival,
            (done.finish - first[done.number]) / (by_number[done.number].output_tokens - 1),
        )
        for done in decoded.requests
    ]


def ninetieth(values: Sequence[float]) -> float:
    """The 90th percentile, between two values as numpy has it."""
    return float(np.percentile(np.array(values), 90))


def best_rate(
    placed: Placed,
    rates: Sequence[float],
    lengths: tuple[int, int],
    targets: tuple[float, float],
    *,
    link: float | None = None,
    budget: int = PREFILL_BUDGET,
) -> float:
    """The highest rate at which nine of ten requests meet their targets; 0 if there is none.

    Args:
        rates: To choose from, rising: what one does not keep to, no higher one does.
        lengths: Prompt and answer tokens on average.
        targets: Most seconds of TTFT and of TPOT.
        link: Prompts are computed apart, behind this link; ``None``: together.
        budget: Tokens of a step where both run together.
    """

    def keeps_to_them(rate: float) -> bool:
        specs = requests_at(rate, *lengths)
        served = (
            serve_together(placed, specs, budget)
            if link is None
            else serve_apart(placed, specs, link)
        )
        good = sum(each.ttft <= targets[0] and each.tpot <= targets[1] for each in served)
        return good >= 0.9 * len(specs)

    within = bisect_left(rates, True, key=lambda rate: not keeps_to_them(rate))
    return rates[within - 1] if within else 0.0


def _run(placed: Placed, specs: Sequence[RequestSpec], budget: int, replicas: int) -> FleetResult:
    cache = CacheConfig(enable_prefix_caching=False)
    scheduler = SchedulerConfig(max_num_seqs=RUNNING, max_num_batched_tokens=budget)
    options = placed.options()
    deployment = deploy(options, cache, scheduler)
    make = replica_maker(deployment, options, cache, scheduler)
    pool = FixedPool([make(number) for number in range(replicas)])
    router = make_router("round-robin")
    return Fleet(pool, router, OpenLoop(specs), deployment.max_model_len).run()


def _decode(placed: Placed, specs: Sequence[RequestSpec]) -> FleetResult:
    scheduler = SchedulerConfig(max_num_seqs=RUNNING, max_num_batched_tokens=NO_BUDGET)
    # Room is counted as that of a device with a usual budget: it holds the same activations.
    usual = SchedulerConfig(max_num_seqs=RUNNING, max_num_batched_tokens=PREFILL_BUDGET)
    deployment = deploy(placed.options(), CacheConfig(enable_prefix_caching=False), usual)
    cost = PromptsArriveComputed(deployment.cost)
    executor = SimulatedExecutor(deployment.info, cost, VirtualClock())
    replica = Replica(executor, scheduler, enable_prefix_caching=False)
    router = make_router("round-robin")
    return Fleet(FixedPool([replica]), router, OpenLoop(specs), deployment.max_model_len).run()
