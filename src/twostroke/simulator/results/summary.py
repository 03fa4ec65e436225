"""The figures of a run: latencies, throughput, goodput, utilisation, cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from twostroke.observability.draft_counts import DraftCounts
from twostroke.observability.latency import (
    LATENCIES,
    PERCENTILES,
    LatencyDistribution,
    meets_targets,
)
from twostroke.simulator.cost.told_sources import describe_sources
from twostroke.simulator.deployment.deployment import describe
from twostroke.simulator.fleet.result import FleetResult, RequestResult
from twostroke.simulator.results.columns import Columns
from twostroke.simulator.results.distributions import weighted_distribution
from twostroke.simulator.results.pools import PoolRun, PoolSummary, use_of_all
from twostroke.simulator.results.steady import SteadyState, steady_state
from twostroke.simulator.results.utilisation import Utilisation

# Those of one request, and its wait for the first step.
RUN_LATENCIES = {**LATENCIES, "queue": "Queue"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run. Times in seconds; throughput per second of ``duration``.

    Attributes:
        duration: Until the end of the last step.
        refused: Requests that no replica could ever hold.
        refused_early: Requests that would have missed their targets (``--admission predicted``).
        unfinished: Requests that an interruption left.
        goodput: Requests per second that met the targets; ``None`` without targets.
        good_share: Share of the completed requests that met the targets; ``None`` likewise.
        latencies: By the keys of ``RUN_LATENCIES``; ``queue``: from arrival to the first step.
        ttft_by_priority: The TTFT of each priority; empty if all requests have the same.
        ttft_by_tenant: The TTFT of each tenant, likewise.
        waiting_for: Shares of the time that requests wait, by the reason why the first of them
            does (``Reason``); ``step``: for the step under way when they arrived.
        steady: Its steady window, and whether it keeps up.
        replicas_mean: How many were paid for, on average.
        replicas_most: Most at once.
        started: Replicas that an autoscaler started.
        drafts: Drafts of all requests, including those that an interruption left.
        handed_on: Prompts that were computed apart from their answers.
        moved: How often a request went on in another replica, as its own had died.
        pools: What each of two pools did; empty where replicas have no roles.
        dollars: Cost of all devices for as long as their replicas were there.
        watt_hours: At the devices' rated power for as long: an upper bound.
    """

    duration: float
    completed: int
    refused: int
    refused_early: int
    unfinished: int
    steps: int
    input_tokens: int
    output_tokens: int
    goodput: float | None
    good_share: float | None
    latencies: dict[str, LatencyDistribution]
    ttft_by_priority: dict[int, LatencyDistribution]
    ttft_by_tenant: dict[int, LatencyDistribution]
    waiting_for: dict[str, float]
    prefix_hit_rate: float
    preemptions: int
    drafts: DraftCounts
    use: Utilisation
    steady: SteadyState
    replicas_mean: float
    replicas_most: int
    started: int
    dollars: float
    watt_hours: float
    handed_on: int = 0
    moved: int = 0
    pools: tuple[PoolSummary, ...] = ()

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration if self.duration else 0.0

    @property
    def output_throughput(self) -> float:
        return self.output_tokens / self.duration if self.duration else 0.0

    @property
    def total_throughput(self) -> float:
        return (self.input_tokens + self.output_tokens) / self.duration if self.duration else 0.0

    @property
    def dollars_per_million_tokens(self) -> float:
        tokens = self.input_tokens + self.output_tokens
        return 1e6 * self.dollars / tokens if tokens else 0.0

    @property
    def dollars_per_million_output_tokens(self) -> float:
        return 1e6 * self.dollars / self.output_tokens if self.output_tokens else 0.0


def summarize_run(
    result: FleetResult,
    columns: Columns,
    pools: Sequence[PoolRun],
    targets: Mapping[str, float],
    total: int,
) -> Summary:
    """The summary of a run of ``total`` requests on these pools."""
    requests = result.requests
    duration = float(columns.end.max()) if len(columns.end) else 0.0
    good = (
        sum(meets_targets(request, targets) for request in requests) if targets else len(requests)
    )
    uses = [pool.use() for pool in pools]
    return Summary(
        duration=duration,
        completed=len(requests),
        refused=len(result.refused),
        refused_early=len(result.refused_early),
        unfinished=total - len(requests) - len(result.refused) - len(result.refused_early),
        steps=len(columns.start),
        input_tokens=sum(request.prompt_tokens for request in requests),
        output_tokens=sum(request.output_tokens for request in requests),
        goodput=good / duration if targets and duration else None,
        good_share=good / len(requests) if targets and requests else None,
        latencies=_latencies(requests, columns),
        ttft_by_priority=_ttft_by([request.priority for request in requests], requests),
        ttft_by_tenant=_ttft_by([request.tenant for request in requests], requests),
        waiting_for=_waiting_for(requests, columns),
        prefix_hit_rate=result.prefix_hits / result.prefix_queries
        if result.prefix_queries
        else 0.0,
        preemptions=result.num_preemptions,
        use=use_of_all(uses, pools),
        steady=steady_state(requests, columns),
        drafts=DraftCounts(
            int(columns.accepted.sum()), int(columns.rejected.sum()), int(columns.new_tokens.sum())
        ),
        replicas_mean=result.replica_seconds / duration if duration else 0.0,
        replicas_most=result.replicas_most,
        started=len(result.logs) - sum(pool.options.replicas for pool in pools),
        dollars=sum(pool.dollars for pool in pools),
        watt_hours=sum(pool.watt_hours for pool in pools),
        handed_on=result.num_handed_on,
        moved=result.num_moved,
        pools=_pool_summaries(uses, pools),
    )


def _pool_summaries(
    uses: Sequence[Utilisation], pools: Sequence[PoolRun]
) -> tuple[PoolSummary, ...]:
    if len(pools) == 1:
        return ()
    return tuple(
        PoolSummary(
            role=pool.role,
            description=describe(pool.deployment, pool.options),
            times_from=describe_sources(pool.deployment.cost),
            interval=pool.deployment.cost.interval,
            replicas=pool.options.replicas,
            use=use,
            dollars=pool.dollars,
        )
        for use, pool in zip(uses, pools)
    )


def _latencies(requests: list[RequestResult], columns: Columns) -> dict[str, LatencyDistribution]:
    gaps = np.concatenate([columns.duration, columns.other_gaps])
    weights = np.concatenate([columns.gaps, np.ones(len(columns.other_gaps), dtype=np.int64)])
    return {
        "ttft": LatencyDistribution.of([request.ttft for request in requests], PERCENTILES),
        # A single token has no time per further token.
        "tpot": LatencyDistribution.of(
            [r.tpot for r in requests if r.output_tokens > 1], PERCENTILES
        ),
        "itl": weighted_distribution(gaps, weights),
        "e2el": LatencyDistribution.of([request.e2el for request in requests], PERCENTILES),
        "queue": LatencyDistribution.of([r.scheduled - r.arrival for r in requests], PERCENTILES),
    }


def _waiting_for(requests: Sequence[RequestResult], columns: Columns) -> dict[str, float]:
    seconds = columns.waiting * columns.duration
    waits = {
        name: float(seconds[columns.kept_out == code].sum())
        for code, name in enumerate(columns.reasons)
        if name
    }
    # The rest of the queueing time. A wait after a preemption is no part of it, so at least 0.
    waits["step"] = max(
        math.fsum(r.scheduled - r.arrival for r in requests) - math.fsum(waits.values()), 0.0
    )
    total = math.fsum(waits.values())
    return {name: value / total for name, value in waits.items()} if total else {}


def _ttft_by(
    groups: Sequence[int], requests: Sequence[RequestResult]
) -> dict[int, LatencyDistribution]:
    if len(set(groups)) < 2:
        return {}
    ttfts: dict[int, list[float]] = {}
    for group, request in zip(groups, requests):
        ttfts.setdefault(group, []).append(request.ttft)
    return {group: LatencyDistribution.of(ttfts[group], PERCENTILES) for group in sorted(ttfts)}
