"""Several engines of one model behind one client: each request goes to one, and on if that ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec.structs import replace

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import InvalidRequestError, TwostrokeError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, AdapterReport, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.engine_view import EnginePart
from twostroke.engine.clients.exposition import merge_expositions
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import EngineRecords, EngineStatus
from twostroke.engine.process.all_engines import (
    OwedClears,
    ask_all,
    check_in_time_somewhere,
    joined_status,
    manage_all,
    manage_caches,
)
from twostroke.engine.process.candidates import Candidates
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.handing_on import NO_POOL, PrefillPool, PromptsApart
from twostroke.engine.process.replica_series import (
    MOVES,
    RouteCounts,
    SeenEngine,
    replica_exposition,
)
from twostroke.engine.process.routed_request import routed_request
from twostroke.observability.events import StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.tracing import names
from twostroke.observability.tracing.attempts import ChosenEngine
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.routers import Route, Router, least_loaded

Loads = Mapping[int, ReplicaLoad]


class Replicas:
    """Implements ``EngineClient`` for several engines of one model.

    A router chooses where a request goes, by how busy each engine is; ``Candidates`` says among
    which. When an engine ends, its requests go on in the others at once. Steps, snapshots and what
    the cache holds are shown of the first engine. Engines may be added and retired, on the event
    loop's thread; one is always there.

    With engines for prompts (``handing_on.py``), long ones go there, and once their first tokens
    are drawn, on to one of the others, which has fetched by then what steps before the last have
    computed. While one of the two kinds is gone, the other does everything.

    Args:
        engines: The first is the one that is shown.
        router: Chooses among indices of ``engines``.
        pool: Which of them are for prompts.
        slow_start: See ``Candidates``.
        traces: Follows traced calls, if some are.

    Attributes:
        loop: The event loop that asked for something last.
        candidates: Which engines may get requests.
    """

    def __init__(
        self,
        engines: Sequence[EngineProcess],
        router: Router[int],
        pool: PrefillPool = NO_POOL,
        slow_start: float = 0.0,
        traces: EngineTraces | None = None,
    ) -> None:
        self._router, self._traces = router, traces
        self.candidates = Candidates(slow_start)
        self._alone: dict[int, str] = {}  # by engine: a request that has it for itself
        self._with: dict[int, EngineProcess] = {}
        self._apart = PromptsApart(self._with, pool)
        self._alike: dict[int, Hashable] = {}
        self._leaving: set[int] = set()
        self._owed = OwedClears()
        self._num_added, self._counts = 0, RouteCounts()
        self.loop: asyncio.AbstractEventLoop | None = None
        for engine in engines:
            self.add(engine)

    @property
    def engines(self) -> list[EngineProcess]:
        """All of them, those that leave too, as they came."""
        return list(self._with.values())

    def add(self, engine: EngineProcess, alike: Hashable = None) -> int:
        """One more, which gets requests from now on. Returns its index, which no other will have.

        Args:
            alike: Engines with equal values give the same answers: each may go on with requests of
                another.
        """
        index, self._num_added = self._num_added, self._num_added + 1
        self._with[index], self._alike[index] = engine, alike
        engine.timelines = None if self._traces is None else self._traces.timelines()
        engine.hand_over = partial(self._adopt, index)
        engine.when_changed = partial(self._note_change, index)
        self.candidates.note_start(index)
        if self.loop is not None:
            engine.use_loop(self.loop)
        self._meet(index)
        return index

    def retire(self, index: int) -> None:
        """An engine gets no more requests; it finishes those that it has."""
        self._leaving.add(index)

    def take_back(self, index: int) -> None:
        """One that was retired gets requests again."""
        self._leaving.discard(index)
        self._note_role(index)

    def hand_off(self, index: int) -> None:
        """Have each request of a retired engine go on in another, once it has its next token."""
        self._with[index].hand_on = partial(self._adopt, index)

    def remove(self, index: int) -> EngineProcess:
        """An engine is gone, as far as requests go; it is the caller's to close."""
        engine = self._with.pop(index)
        _leave_alone(engine)
        self.candidates.forget(index)
        self._owed.forget(index)
        self._leaving.discard(index)
        self._alone.pop(index, None)
        self._counts.forget(index)
        del self._alike[index]
        return engine

    @property
    def _first(self) -> EngineProcess:
        staying = (each for index, each in self._with.items() if index not in self._leaving)
        return next(staying, None) or self.engines[0]

    @property
    def info(self) -> ExecutorInfo:
        return self._first.info

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self._first.scheduler_config

    @property
    def speculation(self) -> Speculation | None:
        return self._first.speculation

    @property
    def watched_targets(self) -> list[str]:
        return self._first.watched_targets

    @property
    def adapters(self) -> Mapping[str, KnownAdapter]:
        return self._first.adapters

    @property
    def status(self) -> EngineStatus:
        """The load of all; an error only if none takes requests."""
        return joined_status([engine.status for engine in self.engines])

    def submit(self, request: GenerationRequest) -> AsyncStream:
        self._use_loop()
        began = time.monotonic()
        if any(engine.has(request.request_id) for engine in self.engines):
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        loads = self._loads()
        if not loads:
            return self._first.submit(request)  # which says why not
        suited = self._apart.suited(len(request.prompt_token_ids), loads)
        route = self._route(request, suited)
        index, why = route.replica, route.reason.value
        self._note_choice(request.request_id, suited, began, why, route.prefix_tokens)
        stream = self._with[index].submit(request)
        is_alone = self._with[index].num_unfinished == 1
        self._alone[index] = request.request_id if is_alone else ""
        self._counts.note(index, why)
        return stream

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        check_in_time_somewhere(self.engines, tenant, request_id, waited)

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._first.events(since)

    def parts(self) -> list[EnginePart]:
        return [self._part(index) for index in self._with]

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        raise InvalidRequestError(
            "KV events of several engines are not put together",
            hint="start a server that has one engine: twostroke serve without --data-parallel-size",
        )

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        self._use_loop()
        report, gone = await manage_caches(self._with, order)
        self._owed.note(order, gone)
        return report

    async def manage_adapters(self, order: AdapterOrder) -> AdapterReport:
        self._use_loop()
        asked = dict(self._with)
        (first, alike), *_ = ((each, self._alike[index]) for index, each in asked.items())
        report = await manage_all(asked, order)
        for index in self._with.keys() - asked.keys():  # they have come meanwhile
            if self._alike[index] == alike:
                self._with[index].mirror.become(first.adapters)
        return report

    async def records(self) -> EngineRecords:
        self._use_loop()
        records = await ask_all([engine.records() for engine in self.engines])
        metrics = merge_expositions(each.metrics for each in records)
        seen = [
            SeenEngine(
                engine.labels,
                engine.takes_requests,
                self.candidates.is_left_out(index),
                self.candidates.num_failures[index],
                self._counts.left[index][names.FAILOVER],
                self._counts.routed(index),
            )
            for index, engine in self._with.items()
        ]
        metrics += replica_exposition(seen)
        metrics += self._apart.exposition(self._first.model_name)
        targets = [report for each in records for report in each.targets]
        return EngineRecords(metrics, records[0].content_type, targets)

    def _part(self, index: int) -> EnginePart:
        (part,) = self._with[index].parts()
        state, reason, routed = part.view.state, part.view.reason, self._counts.routed(index)
        if index in self._leaving:
            state = "leaving"
        elif state == "ready" and self.candidates.is_left_out(index):
            state, reason = "left_out", "it has failed again and again"
        came = sum(routed.get(why, 0) for why in MOVES)
        view = replace(
            part.view,
            state=state,
            reason=reason,
            role=self._apart.role_of(index),
            sent=sum(routed.values()) - came,
            came=came,
            left=self._counts.num_left(index),
            failures=self.candidates.num_failures[index],
            number=index,
            routed=routed,
        )
        return part._replace(view=view)

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        self._use_loop()
        return await self._first.snapshot(with_blocks=with_blocks)

    def unhealthy_reason(self) -> str | None:
        """None while one of them is well: it serves, if with less."""
        reasons = [engine.unhealthy_reason() for engine in self.engines]
        told = [reason for reason in reasons if reason is not None]
        return "; ".join(dict.fromkeys(told)) if len(told) == len(reasons) else None

    async def drain(self, timeout: float) -> None:
        self._keep_where_they_are()
        await asyncio.gather(*(engine.drain(timeout) for engine in self.engines))

    def close(self) -> None:
        self._keep_where_they_are()
        with ThreadPoolExecutor() as threads:  # a process takes a second to end
            closing = [threads.submit(engine.close) for engine in self.engines]
        for each in closing:
            each.result()

    def _keep_where_they_are(self) -> None:
        for engine in self.engines:
            _leave_alone(engine)

    def _use_loop(self) -> None:
        """Have all go by the running loop, on which any of them may take another's requests."""
        self.loop = loop = asyncio.get_running_loop()
        for engine in self.engines:
            engine.use_loop(loop)

    def _loads(self) -> dict[int, ReplicaLoad]:
        """How busy each engine is that takes requests."""
        running = {
            index: engine
            for index, engine in self._with.items()
            if engine.takes_requests and index not in self._leaving
        }
        return self.candidates.loads(running)

    def _alike_loads(self, giver: int) -> dict[int, ReplicaLoad]:
        """The loads of engines that may go on with the requests of one."""
        alike = self._alike[giver]
        return {i: load for i, load in self._loads().items() if self._alike[i] == alike}

    def _note_role(self, index: int) -> None:
        """Go by what an engine is for, which a worker that comes back may have changed."""
        if index not in self._leaving:
            engine, for_prompts = self._with[index], self._apart.tier_of(index) is not None
            engine.hand_on = partial(self._hand_on, index) if for_prompts else None
            engine.hand_ahead = partial(self._hand_ahead, index) if for_prompts else None

    def _hand_ahead(
        self, giver: int, request_id: str, stream: AsyncStream, num_tokens: int
    ) -> None:
        self._apart.hand_ahead(giver, self._alike_loads(giver), request_id, stream, num_tokens)

    def _hand_on(self, giver: int, request_id: str, stream: AsyncStream) -> bool:
        """Have another engine write the answer to a prompt that is through, if one runs."""
        apart, so_far = self._apart, stream.so_far
        loads = apart.takers(giver, request_id, self._alike_loads(giver))
        if not loads or so_far is None:
            return False
        so_far.move(
            apart.tier_of(giver), partial(apart.moves.observe_move, stream.num_prompt_tokens)
        )
        if not self._give(giver, request_id, stream, loads):
            apart.forget(request_id)
            so_far.stay()
            return False
        if self._alone.get(giver) == request_id:
            apart.moves.observe_prompt(*so_far.prompt_time)
        return True

    def _route(self, request: GenerationRequest, loads: Loads) -> Route[int]:
        return self._router.route(routed_request(request, self._with), loads)

    def _note_choice(
        self, request_id: str, loads: Loads, began: float, reason: str, prefix_tokens: int = 0
    ) -> None:
        if self._traces is not None:
            named = {self._with[i].labels["engine"]: load.requests for i, load in loads.items()}
            self._traces.note_choice(request_id, ChosenEngine(began, reason, prefix_tokens, named))

    def _note_change(self, index: int, runs: bool) -> None:
        """An engine has ended, or another runs in its place."""
        engine = self._with[index]
        if runs:
            self.candidates.note_start(index)
            self._meet(index)
        elif not engine.status.draining:
            self.candidates.note_failure(index, f"engine {engine.labels['engine']}")

    def _meet(self, index: int) -> None:
        """An engine is there, or back: what waits for others need not wait any more."""
        self._note_role(index)
        self._owed.carry_out(index, self._with[index])
        for engine in self.engines:
            engine.hand_over_waiting()

    def _adopt(self, giver: int, request_id: str, stream: AsyncStream) -> bool:
        """Have the least loaded engine go on with another's request; ``False`` if none runs."""
        loads = self._apart.writers(self._alike_loads(giver))
        return self._give(giver, request_id, stream, loads)

    def _give(self, giver: int, request_id: str, stream: AsyncStream, loads: Loads) -> bool:
        began, has_ended = time.monotonic(), self._with[giver].status.error is not None
        reason = names.FAILOVER if has_ended else names.HANDED_ON
        # One that it was handed on by may have to end it yet.
        loads = {i: load for i, load in loads.items() if not self._with[i].has(request_id)}
        if not loads:
            return False
        self._note_choice(request_id, loads, began, reason)
        index = least_loaded(loads)
        try:
            self._with[index].adopt(request_id, stream)
        except TwostrokeError:
            return False
        self._apart.forget(request_id, index)
        self._counts.note(index, reason, giver)
        return True


def _leave_alone(engine: EngineProcess) -> None:
    """Its requests stay with it, also where it ends and another follows."""
    engine.hand_over = engine.hand_on = engine.hand_ahead = None
    engine.when_changed = lambda runs: None
