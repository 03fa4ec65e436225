"""Replicas behind a router, and the order in which everything happens."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import SamplingParams
from twostroke.observability.routes import RouteEvent
from twostroke.routing.routers import Route, Router
from twostroke.simulator.deployment.fleet_options import Role
from twostroke.simulator.fleet.journey import Journey
from twostroke.simulator.fleet.loads import ReplicaLoads
from twostroke.simulator.fleet.peers import Sender
from twostroke.simulator.fleet.pool import Pool
from twostroke.simulator.fleet.replica import Replica
from twostroke.simulator.fleet.requests import make_request, resume_request, to_routed
from twostroke.simulator.fleet.result import FleetResult
from twostroke.simulator.fleet.split import Split
from twostroke.simulator.workloads.base import RequestSpec, Workload


class Fleet:
    """Runs a workload to its end.

    The earliest of three things happens first: the next arrival, a change of the pool, or the next
    event of a replica. A replica may run ahead up to the next time at which it can get a request,
    and stay behind while its requests only decode. Where no replica takes requests, they are held
    until one does. A request goes on in another replica when its own has computed its prompt for
    that, or dies.

    Args:
        router: Chooses among all replicas, or those that write answers.
        max_model_len: Most tokens of a request, prompt and output.
        on_route: Told of each request's way to a replica.
        split: Prompts are computed apart.
    """

    def __init__(
        self,
        pool: Pool,
        router: Router[int],
        workload: Workload,
        max_model_len: int,
        on_route: Callable[[RouteEvent], None] | None = None,
        split: Split | None = None,
    ) -> None:
        self._on_route = on_route
        self._pool = pool
        # Of a replica that writes answers; those that compute prompts come first.
        self._info = pool.replicas[-1].executor.info
        self._router, self._split = router, split
        self._workload = workload
        # Whether the end of a request on one replica may bring one to another.
        self._reactive = workload.reactive or split is not None
        self._max_model_len = max_model_len
        self._params = SamplingParams(
            temperature=0, max_tokens=None, ignore_eos=True, detokenize=False
        )
        self._scheduled: Iterator[RequestSpec] = workload.arrivals()
        self._next_scheduled = next(self._scheduled, None)
        self._follow_ups: list[tuple[float, int, RequestSpec]] = []  # a heap, by arrival
        self._events: dict[int, float] = {}  # the next one of each replica that has work
        self._event_heap: list[tuple[float, int]] = []  # with some that are no more
        self._held: list[Journey] = []  # since no replica takes requests
        self._moving: list[tuple[float, int, Journey]] = []  # a heap: on to another, from a time
        self._journeys: dict[str, Journey] = {}
        self._senders: dict[int, Sender] = {}  # of replicas that have computed prompts
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
            held = self._held and change < math.inf
            if arrival == math.inf and first is None and not held:
                return False
            if change <= arrival:
                self._change_pool(change, progress)
            elif self._moving and self._moving[0][0] <= arrival:
                self._send(heapq.heappop(self._moving)[2], arrival, progress)
            else:
                self._admit(self._pop_arrival(), arrival, progress)
            return True
        number = first[1]
        del self._events[number]
        if self._reactive and (second := self._first_event()) is not None:
            # A request that ends on another replica may bring a follow-up, from its time on. Where
            # both have blocks come at one time, each takes its step in turn: else neither would.
            until = min(until, max(second[0], math.nextafter(first[0], math.inf)))
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
                progress(sum([self._finish(request) for request in finished]))
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
        if self._moving:
            arrival = min(arrival, self._moving[0][0])
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
        for number in self._pool.change(len(self._held)):
            self._lose(number, now)
        if self._held and self._pool.loads(now):
            held, self._held = self._held, []
            for journey in held:
                self._send(journey, now, progress)

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
        self._send(Journey(spec), now, progress)

    def _send(self, journey: Journey, now: float, progress: Callable[[int], None]) -> None:
        """Send a request on its way to a replica, or hold it while there is none."""
        role, loads, router = self._role_of(journey, now)
        if not loads:
            self._held.append(journey)
            self._pool.ask_for_one(now)
            return
        loads.catch_up = lambda index: self._catch_up(index, now, progress)
        spec, is_first = journey.spec, journey.request is None
        request = self._make_request(journey, role, now)
        route = router.route(to_routed(spec, partial(loads.num_cached, request)), loads)
        number = route.replica
        self._catch_up(number, now, progress)
        replica = self._pool.replicas[number]
        refused = is_first and replica.refuses(request)
        if self._on_route is not None:
            self._on_route(_route_event(spec, route, loads, refused))
        if refused:
            self._refuse(spec, now, self._result.refused_early, progress)
            return
        if is_first:
            self._num_blocks += len(request.block_hashes) // self._info.kv_groups.count
        journey.request, journey.role, journey.replica = request, role, number
        if role == "decode" and journey.sender is not None:
            replica.expect(request, journey.sender, journey.parts)
        self._journeys[request.request_id] = journey
        replica.add(request)
        self._note(number)

    def _role_of(self, journey: Journey, now: float) -> tuple[Role, ReplicaLoads, Router[int]]:
        """What the next replica of a request is to do, and which replicas and router it is for."""
        split = self._split
        if split is None:
            return "both", self._pool.loads(now), self._router
        if split.computes(journey) and (loads := self._pool.loads(now, "prefill")):
            return "prefill", loads, split.router
        return "decode", self._pool.loads(now, "decode"), self._router

    def _make_request(self, journey: Journey, role: Role, now: float) -> Request:
        """What the next replica's scheduler runs: all that is left, or up to the next token."""
        spec, former, groups = journey.spec, journey.request, self._info.kv_groups
        until = journey.num_known + 1 if role == "prefill" else spec.total_tokens
        if former is not None:
            return resume_request(former, spec, now, journey.num_done, until)
        size = self._info.block_size
        return make_request(spec, self._params, size, self._num_blocks, groups.count, until)

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

    def _finish(self, request: Request) -> bool:
        """A replica is done with a request. Whether that was its end."""
        journey = self._journeys.pop(request.request_id)
        spec, finish = journey.spec, request.finish_time or 0.0
        if request.finish_reason is FinishReason.ABORT:  # it waited too long to be in time
            self._result.refused_early.append(spec.number)
        elif self._hand_on(journey, request, finish):
            return False
        else:
            self._leave(journey, request.num_output_tokens, finish)
            self._result.requests.append(journey.result(finish))
        if self._reactive:
            self._expect(self._workload.after(spec, finish))
        return True

    def _hand_on(self, journey: Journey, request: Request, now: float) -> bool:
        """Send a request whose prompt was computed on its way to where its answer is written."""
        if self._split is None or journey.role != "prefill":
            return False
        num_tokens = request.num_output_tokens if self._split.keeps_first else 0
        if journey.num_done + num_tokens == journey.spec.output_tokens:
            return False  # that was its answer
        self._leave(journey, num_tokens, now)
        journey.sender = self._senders.setdefault(journey.replica, Sender())
        journey.parts = self._pool.replicas[journey.replica].parts.pop(request.request_id, ())
        self._result.num_handed_on += 1
        heapq.heappush(self._moving, (now, journey.spec.number, journey))
        return True

    def _leave(self, journey: Journey, num_tokens: int, now: float) -> None:
        """Note what its replica has done for a request."""
        gap = journey.leave(num_tokens, now)
        if gap is not None:
            self._pool.replicas[journey.replica].log.other_gaps.append(gap)

    def _lose(self, number: int, now: float) -> None:
        """A replica has died: its requests go on in others, as those of a live engine do.

        They have the tokens of the step that was under way.
        """
        replica: Replica = self._pool.replicas[number]
        now = max(now, replica.clock.now) if replica.has_work() else now
        for request in replica.die(now):
            journey = self._journeys.pop(request.request_id)
            self._leave(journey, request.num_output_tokens, now)
            self._result.num_moved += 1
            heapq.heappush(self._moving, (now, journey.spec.number, journey))
        self._events.pop(number, None)
        self._senders.setdefault(number, Sender()).died = now

    def _sum_up(self) -> FleetResult:
        result, replicas = self._result, self._pool.replicas
        if self._split is not None and not self._split.keeps_first:
            for replica, role in zip(replicas, self._pool.roles):
                if role == "prefill":
                    replica.log.forget_tokens()
        result.requests.sort(key=lambda request: request.number)
        result.logs = [replica.log for replica in replicas]
        result.block_size = self._info.block_size
        result.total_blocks = self._pool.num_blocks
        result.blocks = [replica.kv.pool.num_blocks for replica in replicas]
        result.roles = list(self._pool.roles)
        result.prefix_queries = sum(replica.kv.prefix_queries for replica in replicas)
        result.prefix_hits = sum(replica.kv.prefix_hits for replica in replicas)
        if self._split is not None:  # what a replica gets from another is no hit
            result.prefix_queries = sum(each.prompt_tokens for each in result.requests)
            result.prefix_hits = sum(each.cached_tokens for each in result.requests)
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
