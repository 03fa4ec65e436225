"""A plan by simulation: the scheduler that serves, on random requests of several seeds.

A part of the replicas with its part of the traffic stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, median

from twostroke.observability.latency import percentile as percentile_of
from twostroke.planner.apart.split_scenario import part_of_pools, split_scenario
from twostroke.planner.engines import EngineBuilder, EngineChoice
from twostroke.planner.goals import Goal, Metric
from twostroke.planner.traffic import Traffic
from twostroke.routing.make_router import make_router
from twostroke.simulator.deploy_pools import DeployedPool, deploy_pools
from twostroke.simulator.deployment.deployment import Deployment
from twostroke.simulator.fleet.fleet import Fleet
from twostroke.simulator.fleet.make_replicas import replica_maker
from twostroke.simulator.fleet.pool import FixedPool
from twostroke.simulator.fleet.result import FleetResult, RequestResult
from twostroke.simulator.fleet.step_log import StepLog
from twostroke.simulator.jumping.decode_curve import Bound
from twostroke.simulator.make_fleet import EngineSettings, make_fleet
from twostroke.simulator.results.columns import to_columns
from twostroke.simulator.results.steady import Verdict, steady_state
from twostroke.simulator.results.utilisation import utilisation
from twostroke.simulator.scenario import Scenario
from twostroke.simulator.workloads.make import make_workload
from twostroke.simulator.workloads.options import SimulatedWorkloadOptions

# Replicas that are simulated at most, and the most requests in each simulation.
MOST_REPLICAS, MOST_REQUESTS, LEAST_REQUESTS = 2, 4000, 400
# Of replicas that hand on to others, which stop at each other's events, and so are slower.
MOST_OF_POOLS = 1200
# A replica with so many requests at once stands for all by itself.
MANY_RUNNING = 16
# A simulation that is too short to tell is made this much longer at most.
MOST_TIMES_LONGER = 8
# Times that every place of the batch changes hands, and the share of requests that only fill it.
ROUNDS, RAMP = 8, 0.25
# A closed loop drains from its last arrivals on.
DRAIN = 0.1


@dataclass(frozen=True, slots=True)
class Estimated:
    """A figure with its interval: the middle seed, and the worst seeds at the ends of the model."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class OneRun:
    """One simulation. Times of its steady part, ascending, in seconds.

    Attributes:
        verdict: Whether it keeps up (``results/steady.py``).
    """

    ttft: list[float]
    tpot: list[float]
    e2e: list[float]
    verdict: Verdict
    kv_mean: float
    kv_peak: float
    busy: float
    preemptions: int
    rate: float

    @property
    def overloaded(self) -> bool:
        return self.verdict == "overloaded"

    def time(self, metric: Metric, percentile: float | None) -> float:
        times: list[float] = getattr(self, metric)
        if percentile is None:
            return fmean(times) if times else 0.0
        return percentile_of(times, percentile)


@dataclass(frozen=True, slots=True)
class Proof:
    """All simulations of one plan: by each end of the cost model's interval, one for each seed."""

    runs: dict[Bound, list[OneRun]]
    requests: int
    simulated_replicas: int

    def time(self, metric: Metric, percentile: float | None) -> Estimated:
        values = {
            bound: [run.time(metric, percentile) for run in runs]
            for bound, runs in self.runs.items()
        }
        return Estimated(min(values["low"]), median(values["seconds"]), max(values["high"]))

    def meets(self, goals: tuple[Goal, ...], *, pessimistic: bool) -> bool:
        """Whether every target is kept: by the worst seed at the high end, or by the middle one."""
        runs = self.runs["high" if pessimistic else "seconds"]
        if any(run.overloaded for run in runs):
            return False
        choose = max if pessimistic else median
        return all(
            choose([run.time(goal.metric, goal.percentile) for run in runs]) <= goal.limit
            for goal in goals
        )

    def mean(self, name: str) -> float:
        """A figure such as ``kv_mean``, over the seeds, at the middle."""
        return fmean(getattr(run, name) for run in self.runs["seconds"])


class Prover:
    """Simulations of one plan, each run once.

    Args:
        running: Requests at once in a replica, as the formulas say: it decides how many are run.
        prompts: The engine that computes prompts for these, and how many there are of it.
        advance: Called after each simulation.
    """

    def __init__(
        self,
        builder: EngineBuilder,
        engine: EngineChoice,
        replicas: int,
        traffic: Traffic,
        running: float,
        seeds: int,
        advance: Callable[[], None] = lambda: None,
        prompts: tuple[EngineChoice, int] | None = None,
    ) -> None:
        self._builder, self._engine, self._advance = builder, engine, advance
        self._deployment = builder.deployment(engine)
        self._pools: tuple[Scenario, tuple[DeployedPool, ...]] | None = None
        if prompts is None:
            self._count = 1 if running >= MANY_RUNNING else min(replicas, MOST_REPLICAS)
            share = self._count / replicas
        else:
            computing, of_prompts = prompts
            part, self._count, share = part_of_pools(of_prompts, replicas)
            scenario = split_scenario(builder, computing, part, engine, self._count)
            self._pools = deploy_pools(scenario)
        self._traffic = traffic.times(share)
        users = self._traffic.users
        under_way = running * self._count if users is None else users
        most = MOST_REQUESTS if prompts is None else MOST_OF_POOLS
        self._requests = min(max(LEAST_REQUESTS, ceil(ROUNDS * under_way)), most)
        self._seeds = seeds
        self._runs: dict[Bound, list[OneRun]] = {}

    def at(self, *bounds: Bound) -> Proof:
        """The simulations at these ends of the cost model's interval."""
        for bound in bounds:
            if bound in self._runs:
                continue
            self._runs[bound] = []
            for seed in range(self._seeds):
                run = self._run(seed, bound)
                self._runs[bound].append(run)
                self._advance()
        return Proof(dict(self._runs), self._requests, self._count)

    def _run(self, seed: int, bound: Bound) -> OneRun:
        """One simulation, made longer until it tells whether the replicas keep up."""
        requests = self._requests
        while True:
            if self._pools is not None:
                run = run_pools(*self._pools, self._traffic, requests, seed, bound)
            else:
                run = run_once(
                    self._builder,
                    self._deployment,
                    self._engine,
                    self._traffic,
                    self._count,
                    requests,
                    seed,
                    bound,
                )
            if run.verdict != "undecided":
                return run
            if requests >= MOST_TIMES_LONGER * self._requests:
                return replace(run, verdict="overloaded")
            requests *= 2


def run_once(
    builder: EngineBuilder,
    deployment: Deployment,
    engine: EngineChoice,
    traffic: Traffic,
    replicas: int,
    requests: int,
    seed: int,
    bound: Bound,
) -> OneRun:
    """One simulation of so many replicas with all of this traffic."""
    result = run_replicas(builder, deployment, engine, traffic, replicas, requests, seed, bound)
    return _sum_up(result, deployment, traffic, result.logs, result.replica_seconds)


def run_replicas(
    builder: EngineBuilder,
    deployment: Deployment,
    engine: EngineChoice,
    traffic: Traffic,
    replicas: int,
    requests: int,
    seed: int,
    bound: Bound,
) -> FleetResult:
    """One simulation of so many replicas with all of this traffic: its requests and steps."""
    options, cache = builder.options(engine, replicas), builder.cache(engine)
    make = replica_maker(deployment, options, cache, deployment.scheduler, bound=bound, seed=seed)
    fleet = Fleet(
        FixedPool([make(number) for number in range(replicas)]),
        make_router(options.router),
        make_workload(_workload(traffic, requests, seed)).workload,
        deployment.max_model_len,
    )
    return fleet.run()


def run_pools(
    scenario: Scenario,
    pools: Sequence[DeployedPool],
    traffic: Traffic,
    requests: int,
    seed: int,
    bound: Bound,
) -> OneRun:
    """One simulation of replicas that compute prompts and others that write answers."""
    settings = EngineSettings(bound=bound, jump=True, seed=seed, observers=(), targets=())
    pool, split = make_fleet(scenario, pools, settings)
    answering = pools[-1]
    fleet = Fleet(
        pool,
        make_router(scenario.deployment.router),
        make_workload(_workload(traffic, requests, seed)).workload,
        answering.deployment.max_model_len,
        split=split,
    )
    result = fleet.run()
    logs = [log for log, role in zip(result.logs, result.roles) if role == answering.role]
    end = max((log.end[-1] for log in result.logs if len(log)), default=0.0)
    seconds = pool.replica_seconds(end, answering.role)
    return _sum_up(result, answering.deployment, traffic, logs, seconds)


def _workload(traffic: Traffic, requests: int, seed: int) -> SimulatedWorkloadOptions:
    workload = replace(traffic.workload, seed=seed, num_requests=requests)
    if traffic.users is None:
        return replace(workload, rate=traffic.rate)
    return replace(
        workload,
        arrivals="closed",
        concurrency=traffic.users,
        think_time=traffic.think_time,
    )


def _sum_up(
    result: FleetResult,
    deployment: Deployment,
    traffic: Traffic,
    logs: Sequence[StepLog],
    replica_seconds: float,
) -> OneRun:
    """The steady part of a run; ``logs`` are of replicas that write answers."""
    if result.interrupted:
        raise KeyboardInterrupt
    steady = steady_state(result.requests, to_columns(result.logs))
    chosen = _steady_part(result.requests, closed=traffic.users is not None)
    kv_dtype = deployment.info.kv_cache_dtype
    use = utilisation(to_columns(logs), deployment, replica_seconds, kv_dtype)
    return OneRun(
        ttft=sorted(request.ttft for request in chosen),
        tpot=sorted(request.tpot for request in chosen if request.output_tokens > 1),
        e2e=sorted(request.e2el for request in chosen),
        # Users who wait for their answers cannot come faster than these.
        verdict=steady.verdict if traffic.users is None else "stable",
        kv_mean=use.kv_mean,
        kv_peak=use.kv_peak,
        busy=use.busy,
        preemptions=result.num_preemptions,
        rate=steady.request_throughput or 0.0,
    )


def _steady_part(requests: list[RequestResult], *, closed: bool) -> list[RequestResult]:
    """Requests that came when the engine was full, and before a closed loop drains."""
    in_order = sorted(requests, key=lambda request: request.arrival)
    end = len(in_order) - int(DRAIN * len(in_order)) if closed else len(in_order)
    return in_order[int(RAMP * len(in_order)) : end]
