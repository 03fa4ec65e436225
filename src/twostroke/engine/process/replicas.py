"""Several engines of one model behind one client: each request goes to one, and on if that ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import (
    InvalidRequestError,
    PredictedLateError,
    TwostrokeError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.exposition import merge_expositions
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.messages import EngineRecords, EngineStatus
from twostroke.engine.process.candidates import Candidates
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.handing_on import (
    NO_POOL,
    PrefillPool,
    fetches,
    moves_exposition,
    offered_by,
    room_for,
)
from twostroke.engine.process.prompt_segments import prompt_segments
from twostroke.engine.process.replica_series import SeenEngine, replica_exposition
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.routing.loads import ReplicaLoad
from twostroke.routing.routers import RoutedRequest, Router, least_loaded
from twostroke.timing.move_times import MoveTimes

_COUNTS = [each.name for each in fields(SchedulerStats) if each.name != "tiers"]


class Replicas:
    """Implements ``EngineClient`` for several engines of one model.

    A router chooses where a request goes, by how busy each engine is; ``Candidates`` says among
    which. When an engine ends, its requests go on in the others at once. Steps, snapshots and what
    the cache holds are shown of the first engine. Engines may be added and retired, on the event
    loop's thread; one is always there.

    With engines for prompts (``handing_on.py``), long ones go there, and once their first tokens
    are drawn, on to one of the others. While one of the two kinds is gone, the other does
    everything.

    Args:
        engines: The first is the one that is shown.
        router: Chooses among indices of ``engines``.
        pool: Which of them are for prompts.
        slow_start: See ``Candidates``.

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
    ) -> None:
        self._router, self._pool = router, pool
        self.candidates = Candidates(slow_start)
        self._moves = MoveTimes()
        self._alone: dict[int, str] = {}  # by engine: a request that has it for itself
        self._with: dict[int, EngineProcess] = {}
        self._alike: dict[int, Hashable] = {}
        self._leaving: set[int] = set()
        self._num_added, self._num_failovers = 0, Counter[int]()
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
        engine.hand_over = engine.hand_on = None
        engine.when_changed = lambda runs: None
        self.candidates.forget(index)
        self._leaving.discard(index)
        self._alone.pop(index, None)
        del self._alike[index], self._num_failovers[index]
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
        statuses = [engine.status for engine in self.engines]
        counts: dict[str, Any] = {
            name: sum(getattr(status.stats, name) for status in statuses) for name in _COUNTS
        }
        stats = SchedulerStats(**counts, tiers=statuses[0].stats.tiers)
        errors = [status.error for status in statuses]
        busy = [each.busy_since for each in statuses if each.busy_since is not None]
        return EngineStatus(stats, errors[0] if all(errors) else None, min(busy, default=None))

    def submit(self, request: GenerationRequest) -> AsyncStream:
        self._use_loop()
        if any(engine.has(request.request_id) for engine in self.engines):
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        loads = self._loads()
        if not loads:
            return self._first.submit(request)  # which says why not
        index = self._route(request, self._suited(request, loads))
        stream = self._with[index].submit(request)
        is_alone = self._with[index].num_unfinished == 1
        self._alone[index] = request.request_id if is_alone else ""
        return stream

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        late: PredictedLateError | None = None
        for engine in self.engines:
            try:
                engine.check_in_time(tenant, request_id, waited)
            except PredictedLateError as error:
                late = error
            else:
                return
        if late is not None:
            raise late

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._first.events(since)

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        raise InvalidRequestError(
            "KV events of several engines are not put together",
            hint="start a server that has one engine: twostroke serve without --data-parallel-size",
        )

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        self._use_loop()
        reports = await self._ask_all([each.manage_cache(order) for each in self.engines])
        report: CacheReport = reports[0]
        report.cleared_blocks = sum(each.cleared_blocks for each in reports)
        return report

    async def manage_adapters(self, order: AdapterOrder) -> KnownAdapter:
        self._use_loop()
        asked = dict(self._with)
        (first, alike), *_ = ((each, self._alike[index]) for index, each in asked.items())
        answers = await self._ask_all([each.manage_adapters(order) for each in asked.values()])
        for index in self._with.keys() - asked.keys():  # they have come meanwhile
            if self._alike[index] == alike:
                self._with[index].know_adapters(first.adapters)
        adapter: KnownAdapter = answers[0]
        return adapter

    async def records(self) -> EngineRecords:
        self._use_loop()
        records = await self._ask_all([engine.records() for engine in self.engines])
        metrics = merge_expositions(each.metrics for each in records)
        seen = [
            SeenEngine(
                engine.labels,
                engine.takes_requests,
                self.candidates.is_left_out(index),
                self.candidates.num_failures[index],
                self._num_failovers[index],
            )
            for index, engine in self._with.items()
        ]
        metrics += replica_exposition(seen)
        if any(self._tier_of(index) for index in self._with):
            name = self._first.model_name
            metrics += moves_exposition(name, self._moves, self._min_tokens)
        targets = [report for each in records for report in each.targets]
        return EngineRecords(metrics, records[0].content_type, targets)

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
            engine.hand_over = engine.hand_on = None

    def _use_loop(self) -> None:
        """Have all go by the running loop, on which any of them may take another's requests."""
        self.loop = loop = asyncio.get_running_loop()
        for engine in self.engines:
            engine.use_loop(loop)

    async def _ask_all(self, questions: Sequence[Any]) -> list[Any]:
        """All answers; the first error, if there is one, once all have answered."""
        answers = await asyncio.gather(*questions, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return list(answers)

    def _loads(self) -> dict[int, ReplicaLoad]:
        """How busy each engine is that takes requests."""
        running = {
            index: engine
            for index, engine in self._with.items()
            if engine.takes_requests and index not in self._leaving
        }
        return self.candidates.loads(running)

    def _suited(
        self, request: GenerationRequest, loads: dict[int, ReplicaLoad]
    ) -> dict[int, ReplicaLoad]:
        """Engines for prompts, if this one is long enough and they have room for its blocks."""
        size = len(request.prompt_token_ids)
        if size < self._min_tokens:
            return self._writers(loads)
        roomy = {index: load for index, load in loads.items() if self._has_room(index, size)}
        return roomy or self._writers(loads)

    @property
    def _min_tokens(self) -> int:
        given = self._pool.plan.min_tokens
        return self._moves.least_tokens if given is None else given

    def _has_room(self, index: int, num_tokens: int) -> bool:
        """Whether an engine is for prompts, and others can fetch one as long."""
        if index in self._pool.tiers:
            return num_tokens * self.info.kv_bytes_per_token <= self._pool.plan.memory
        return room_for(self._with[index].info, num_tokens)

    def _tier_of(self, index: int) -> str | None:
        """Where others fetch what an engine computes; ``None`` of one that writes answers."""
        return self._pool.tiers.get(index) or offered_by(self._with[index].info)

    def _note_role(self, index: int) -> None:
        """Go by what an engine is for, which a worker that comes back may have changed."""
        if index not in self._leaving:
            for_prompts = self._tier_of(index) is not None
            self._with[index].hand_on = partial(self._hand_on, index) if for_prompts else None

    def _writers(self, loads: dict[int, ReplicaLoad]) -> dict[int, ReplicaLoad]:
        """Leave out what is for prompts, unless there is nothing else."""
        return {i: load for i, load in loads.items() if self._tier_of(i) is None} or loads

    def _hand_on(self, giver: int, request_id: str, stream: AsyncStream) -> bool:
        """Have another engine write the answer to a prompt that is through, if one runs."""
        is_own = giver in self._pool.tiers
        loads = {
            index: load
            for index, load in self._loads().items()
            if self._tier_of(index) is None and (is_own or fetches(self._with[index].info))
        }
        so_far = stream.so_far
        if not loads or so_far is None:
            return False
        so_far.move(
            self._tier_of(giver), partial(self._moves.observe_move, stream.num_prompt_tokens)
        )
        if not self._give(request_id, stream, loads):
            so_far.stay()
            return False
        if self._alone.get(giver) == request_id:
            self._moves.observe_prompt(*so_far.prompt_time)
        return True

    def _route(self, request: GenerationRequest, loads: Mapping[int, ReplicaLoad]) -> int:
        routed = RoutedRequest(len(request.prompt_token_ids), prompt_segments(request))
        return self._router.route(routed, loads).replica

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
        for engine in self.engines:
            engine.hand_over_waiting()

    def _adopt(self, giver: int, request_id: str, stream: AsyncStream) -> bool:
        """Have the least loaded engine go on with another's request; ``False`` if none runs."""
        alike = self._alike[giver]
        loads = {i: load for i, load in self._loads().items() if self._alike[i] == alike}
        given = self._give(request_id, stream, self._writers(loads))
        self._num_failovers[giver] += given and self._with[giver].status.error is not None
        return given

    def _give(self, request_id: str, stream: AsyncStream, loads: Mapping[int, ReplicaLoad]) -> bool:
        # One that it was handed on by may have to end it yet.
        loads = {i: load for i, load in loads.items() if not self._with[i].has(request_id)}
        if not loads:
            return False
        engine = self._with[least_loaded(loads)]
        try:
            engine.adopt(request_id, stream)
        except TwostrokeError:
            return False
        return True
