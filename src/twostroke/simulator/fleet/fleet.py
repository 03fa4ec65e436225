"""Replicas behind a router, and the order in which everything happens."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.latency import time_per_output_token
from twostroke.observability.routes import RouteEvent
from twostroke.routing.routers import Route, Router
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.pool import Pool, ScalingEvent
from twostroke.simulator.fleet.requests import make_request, to_routed
from twostroke.simulator.fleet.step_log import StepLog
from twostroke.simulator.workloads.base import RequestSpec, Workload


class RequestResult(msgspec.Struct, frozen=True):
    """One finished request; times in seconds since the start."""

    number: int
    replica: int
    arrival: float
    scheduled: float
    first_token: float
    finish: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int
    priority: int = 0
    tenant: int = 0

    @property
    def ttft(self) -> float:
        return self.first_token - self.arrival

    @property
    def tpot(self) -> float:
        """Mean time per output token after the first; 0 if there is no second."""
        return time_per_output_token(self.first_token, self.finish, self.output_tokens)

    @property
    def e2el(self) -> float:
        return self.finish - self.arrival


@dataclass(slots=True)
class FleetResult:
    """What a simulation produced, complete or not.

    Attributes:
        requests: Those that finished, by number.
        refused: Numbers of those that no replica could ever hold.
        refused_early: Numbers of those that would have missed their targets.
        logs: One per replica that there ever was.
        replica_seconds: How long replicas were paid for, all together.
        replicas_most: Most of them at once.
        scaling: What an autoscaler decided.
        prefix_queries: Tokens looked up in the prefix caches.
        prefix_hits: Tokens found there.
        interrupted: Ctrl-C stopped it before the end.
    """

    requests: list[RequestResult] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    refused_early: list[int] = field(default_factory=list)
    logs: list[StepLog] = field(default_factory=list)
    total_blocks: int = 0
    block_size: int = 0
    replica_seconds: float = 0.0
    replicas_most: int = 0
    scaling: list[ScalingEvent] = field(default_factory=list)
    prefix_queries: int = 0
    prefix_hits: int = 0
    num_preemptions: int = 0
    interrupted: bool = False


class Fleet:
    """Runs a workload to its end.

    The earliest of three things happens first: the next arrival, a change of the pool, or the next
    event of a replica. A replica may run ahead up to the next time at which it can get a request,
    and stay behind while its requests only decode. Where no replica takes requests, they are held
    until one does.

    Args:
        max_model_len: Most tokens of a request, prompt and output.
        on_route: Told of each request's way to a replica.
    """

    def __init__(
        self,
        pool: Pool,
        router: Router[int],
        workload: Workload,
        max_model_len: int,
        on_route: Callable[[RouteEvent], None] | None = None,
    ) -> None:
        self._on_route = on_route
        self._pool = pool
        self._info = pool.replicas[0].executor.info
        self._router = router
        self._workload = workload
        self._reactive = workload.reactive
        self._max_model_len = max_model_len
        self._params = SamplingParams(
            temperature=0, max_tokens=None, ignore_eos=True, detokenize=False
        )
        self._scheduled: Iterator[RequestSpec] = workload.arrivals()
        self._next_scheduled = next(self._scheduled, None)
        self._follow_ups: list[tuple[float, int, RequestSpec]] = []  # a heap, by arrival
        self._events: dict[int, float] = {}  # the next one of each replica that has work
        self._event_heap: list[tuple[float, int]] = []  # with some that are no more
        self._held: list[RequestSpec] = []  # since no replica takes requests
        self._specs: dict[str, tuple[RequestSpec, int]] = {}
        self._num_blocks = 0  # that all requests so far will fill, in one group of layers
        self._result = FleetResult()

    def run(self, progress: Callable[[int], None] = lambda _: None) -> FleetResult:
        """Simulate until the last request has ended, or Ctrl-C.

        Args:
            progress: Called with the number of requests that have just ended.
        """
        try:
            while self._turn(progress):
                pass
        except KeyboardInterrupt:
            self._result.interrupted = True
            for replica in self._pool.replicas:
                replica.log.drop_unfinished()
        return self._sum_up()

    def _turn(self, progress: Callable[[int], None]) -> bool:
        arrival, change = self._next_arrival(), self._pool.next_change
        until = min(arrival, change)
        first = self._first_event()
        if first is None or first[0] >= until:
            if arrival == math.inf and first is None and not self._held:
                return False
            if change <= arrival:
                self._change_pool(change, progress)
            else:
                self._admit(self._pop_arrival(), arrival, progress)
            return True
        number = first[1]
        del self._events[number]
        if self._reactive and (second := self._first_event()) is not None:
            # A request that ends on another replica may bring a follow-up, from its time on.
            until = min(until, second[0])
        self._run(number, until, progress)
        return True

    def _first_event(self) -> tuple[float, int] | None:
        """When the earliest event of all replicas is, and of which one."""
        heap, events = self._event_heap, self._events
        while heap and events.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)  # it has been taken, or has changed
        return heap[0] if heap else None

    def _run(self, number: int, until: float, progress: Callable[[int], None]) -> None:
        """Take steps that begin before ``until``, one at least; where requests bring others, only
        up to the end of one."""
        replica = self._pool.replicas[number]
        while True:
            if finished := replica.run(until):
                for request in finished:
                    self._finish(request)
                progress(len(finished))
                if self._reactive:
                    break
            if replica.clock.now >= until or not replica.has_work():
                break
        self._note(number)

    def _catch_up(self, number: int, now: float, progress: Callable[[int], None]) -> None:
        replica = self._pool.replicas[number]
        if replica.has_work() and replica.clock.now < now:
            self._run(number, now, progress)

    def _note(self, number: int) -> None:
        """Remember when a replica has its next event, if it has work."""
        replica = self._pool.replicas[number]
        self._events.pop(number, None)
        if replica.has_work():
            self._events[number] = event = replica.next_event()
            heapq.heappush(self._event_heap, (event, number))

    # ---- arrivals --------------------------------------------------------------------------------

    def _next_arrival(self) -> float:
        arrival = math.inf if self._next_scheduled is None else self._next_scheduled.arrival
        return min(arrival, self._follow_ups[0][0]) if self._follow_ups else arrival

    def _pop_arrival(self) -> RequestSpec:
        spec = self._next_scheduled
        if spec is None or (self._follow_ups and self._follow_ups[0][0] < spec.arrival):
            return heapq.heappop(self._follow_ups)[2]
        self._next_scheduled = next(self._scheduled, None)
        return spec

    def _change_pool(self, now: float, progress: Callable[[int], None]) -> None:
        for number in list(self._events):
            self._catch_up(number, now, progress)
        self._pool.change(len(self._held))
        if self._held and self._pool.loads(now):
            held, self._held = self._held, []
            for spec in held:
                self._admit(spec, now, progress)

    def _admit(self, spec: RequestSpec, now: float, progress: Callable[[int], None]) -> None:
        """Send a request to a replica, or refuse it as the live engine does: early, or too long."""
        info = self._info
        total, groups = spec.total_tokens, info.kv_groups
        if (
            total > self._max_model_len
            or groups.most_blocks(total, info.block_size) > info.num_blocks
        ):
            self._refuse(spec, now, self._result.refused, progress)
            return
        loads = self._pool.loads(now)
        if not loads:
            self._held.append(spec)
            self._pool.ask_for_one(now)
            return
        loads.catch_up = lambda index: self._catch_up(index, now, progress)
        route = self._router.route(to_routed(spec), loads)
        number = route.replica
        self._catch_up(number, now, progress)
        replica = self._pool.replicas[number]
        request = make_request(spec, self._params, info.block_size, self._num_blocks, groups.count)
        refused = replica.refuses(request)
        if self._on_route is not None:
            self._on_route(_route_event(spec, route, loads, refused))
        if refused:
            self._refuse(spec, now, self._result.refused_early, progress)
            return
        self._num_blocks += len(request.block_hashes) // groups.count
        self._specs[request.request_id] = spec, number
        replica.add(request)
        self._note(number)

    def _refuse(
        self, spec: RequestSpec, now: float, refused: list[int], progress: Callable[[int], None]
    ) -> None:
        refused.append(spec.number)
        self._expect(self._workload.after(spec, now))
        progress(1)

    def _expect(self, specs: Sequence[RequestSpec]) -> None:
        for spec in specs:
            heapq.heappush(self._follow_ups, (spec.arrival, spec.number, spec))

    # ---- ends ------------------------------------------------------------------------------------

    def _finish(self, request: Request) -> None:
        spec, replica = self._specs.pop(request.request_id)
        finish = request.finish_time or 0.0
        if request.finish_reason is FinishReason.ABORT:  # it waited too long to be in time
            self._result.refused_early.append(spec.number)
            if self._reactive:
                self._expect(self._workload.after(spec, finish))
            return
        self._result.requests.append(
            RequestResult(
                number=spec.number,
                replica=replica,
                arrival=request.arrival_time,
                scheduled=request.first_scheduled_time or 0.0,
                first_token=request.first_token_time or 0.0,
                finish=finish,
                prompt_tokens=request.num_prompt_tokens,
                output_tokens=request.num_output_tokens,
                cached_tokens=request.num_cached_tokens,
                preemptions=request.num_preemptions,
                priority=request.spec.priority,
                tenant=spec.tenant,
            )
        )
        if self._reactive:
            self._expect(self._workload.after(spec, finish))

    def _sum_up(self) -> FleetResult:
        result, replicas = self._result, self._pool.replicas
        result.requests.sort(key=lambda request: request.number)
        result.logs = [replica.log for replica in replicas]
        result.block_size = self._info.block_size
        result.total_blocks = self._pool.most * replicas[0].kv.pool.num_blocks
        result.prefix_queries = sum(replica.kv.prefix_queries for replica in replicas)
        result.prefix_hits = sum(replica.kv.prefix_hits for replica in replicas)
        result.num_preemptions = sum(
            replica.scheduler.batch.num_preemptions for replica in replicas
        )
        end = max((log.end[-1] for log in result.logs if len(log)), default=0.0)
        result.replica_seconds = self._pool.replica_seconds(end)
        result.replicas_most = self._pool.most
        result.scaling = list(self._pool.events)
        return result


def _route_event(
    spec: RequestSpec, route: Route[int], loads: ReplicaLoads, refused: bool
) -> RouteEvent:
    counts = {index: load.requests for index, load in loads.items()}
    return RouteEvent(
        time=spec.arrival,
        request_id=spec.request_id,
        replica=route.replica,
        reason=route.reason,
        prompt_tokens=spec.prompt_tokens,
        prefix_tokens=route.prefix_tokens,
        load=counts[route.replica],
        least_load=min(counts.values()),
        most_load=max(counts.values()),
        refused=refused,
    )
