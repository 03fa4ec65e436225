"""The replicas of one model: started, watched, scaled and replaced while they serve."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from twostroke.core.errors import EngineDeadError, TwostrokeError
from twostroke.engine.clients.engine_view import EnginePart, EngineView
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.pool_series import pool_exposition
from twostroke.engine.fleet.supervised import PoolMember, SupervisedSource
from twostroke.engine.messages import EngineRecords
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.on_loop import do_on_loop
from twostroke.engine.process.process_link import PAUSES
from twostroke.engine.process.replicas import Replicas
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.routing.autoscaler import Autoscaler
from twostroke.routing.routers import Router

logger = logging.getLogger(__name__)
TICK_SECONDS = 0.1
MAX_CRASHES = 3  # of the first replica of a changed plan, while it starts


class _Start(NamedTuple):
    """A replica that is not ready yet."""

    number: int
    edition: int
    source: SupervisedSource
    started: Future[StartedEngine]


class EnginePool(Replicas):
    """Implements ``EngineClient`` for replicas that come and go.

    Ten times a second what there is is compared with what is wanted: the plan's number, or the
    autoscaler's. A replica
    whose process ends is started again by its ``EngineProcess``. One that is to go gets no more
    requests, finishes what it has, and hands on what takes too long. Where the plan has changed,
    replicas are replaced one by one, each once its successor is ready.

    Where none is wanted one stays, asleep: its process ends, and the next request starts another.

    Args:
        name: The model's, for people.
        plan: How it is to be.
        prepare: The source of a replica by its number.
        make: A client of an engine that has started.
        first: Those that have started already.
        slow_start, traces: See ``Replicas``.
    """

    def __init__(
        self,
        name: str,
        plan: PoolPlan,
        router: Router[int],
        prepare: Callable[[PoolPlan, int], SupervisedSource],
        make: Callable[[SupervisedSource, StartedEngine], EngineProcess],
        first: Sequence[tuple[SupervisedSource, StartedEngine]],
        slow_start: float = 0.0,
        traces: EngineTraces | None = None,
    ) -> None:
        super().__init__([], router, slow_start=slow_start, traces=traces)
        self.name, self.plan = name, plan
        self._prepare, self._make = prepare, make
        self._wanted, self._edition, self._num_editions = plan.num_at_first, 0, 1
        self._former: tuple[PoolPlan, int] | None = None  # while none of the next is ready
        self._members: list[PoolMember] = []
        self._starts: list[_Start] = []
        self._autoscaler = Autoscaler(plan.scaling)
        self._next_decision = time.monotonic() + plan.scaling.autoscale_interval
        self._num_failures, self._not_before = 0, 0.0
        self._told = ""
        for number, (source, started) in enumerate(first):
            self._take(number, source, started)
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._supervise, name=f"twostroke-pool-{name}", daemon=True
        )
        self._thread.start()

    def update(self, plan: PoolPlan) -> None:
        """Be like this from now on; on any thread but the event loop's."""
        do_on_loop(self.loop, partial(self._adopt_plan, plan), self._closing.is_set)

    def describe(self) -> str:
        """One line: which replicas there are, in which processes, and what they do."""
        replicas = [
            *(f"replica {each.number} {each.describe()}" for each in self._members),
            *(f"replica {each.number} starts" for each in self._starts),
        ]
        num_ready = sum(each.state == "ready" for each in self._members)
        return f"{num_ready} of {self._wanted} ready; {', '.join(replicas)}"

    async def records(self) -> EngineRecords:
        records = await super().records()
        own = pool_exposition(self.name, self._wanted, self._members, len(self._starts))
        return EngineRecords(records.metrics + own, records.content_type, records.targets)

    def parts(self) -> list[EnginePart]:
        starting = [
            EngineView(self.name, str(each.number), "starting", number=-1 - each.number)
            for each in self._starts
        ]
        return super().parts() + [EnginePart(view, lambda since: []) for view in starting]

    async def drain(self, timeout: float) -> None:
        self._closing.set()
        await super().drain(timeout)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for each in self._starts:
            each.started.add_done_callback(_close_unused)
        super().close()

    # ---- the thread that supervises --------------------------------------------------------------

    def _supervise(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            try:
                do_on_loop(self.loop, self._tick, self._closing.is_set)
            except Exception:
                logger.exception("pool %s cannot be looked after just now", self.name)

    # ---- on the event loop's thread --------------------------------------------------------------

    def _tick(self) -> None:
        """Come nearer to what is wanted."""
        if self._closing.is_set():  # meanwhile
            return
        now = time.monotonic()
        for each in self._members:
            each.look()
        for start in [each for each in self._starts if each.started.done()]:
            self._starts.remove(start)
            self._welcome(start, now)
        self._decide(now)
        self._start_missing(now)
        self._retire_surplus(now)
        self._let_sleep()
        self._end_drained(now)
        if (text := self.describe()) != self._told:
            logger.info("pool %s: %s", self.name, text)
            self._told = text

    def _adopt_plan(self, plan: PoolPlan) -> None:
        former, self.plan = self.plan, plan
        if plan.scaling != former.scaling:
            self._autoscaler, self._next_decision = Autoscaler(plan.scaling), time.monotonic()
        if self._former is not None and not plan.is_another(self._former[0]):
            # Changed back before a replica was ready: those that serve are right.
            self._edition, self._former = self._former[1], None
            self._num_failures, self._not_before = 0, 0.0
        elif plan.is_another(former):
            self._former = self._former or (former, self._edition)
            self._edition, self._num_editions = self._num_editions, self._num_editions + 1
            self._num_failures, self._not_before = 0, 0.0

    @property
    def _current(self) -> list[PoolMember]:
        """Replicas that are as they should be, and stay."""
        return [each for each in self._members if each.stays and each.edition == self._edition]

    @property
    def _outdated(self) -> list[PoolMember]:
        """Replicas that serve until others are ready."""
        return [each for each in self._members if each.stays and each.edition != self._edition]

    @property
    def _num_kept(self) -> int:
        """How many there are to be, with one that sleeps."""
        return max(1, self._wanted)

    def _take(self, number: int, source: SupervisedSource, started: StartedEngine) -> None:
        engine = self._make(source, started)
        engine.holds_requests = True
        if self._members and self._members[0].source.config.adapters == source.config.adapters:
            engine.mirror.become(self.adapters)  # what clients have loaded and unloaded
        index = self.add(engine, self.plan.alike())
        self._members.append(PoolMember(index, number, self._edition, source, engine))

    def _welcome(self, start: _Start, now: float) -> None:
        """A start has come to its end: have the replica serve, or note why there is none."""
        error = start.started.exception()
        if start.edition != self._edition:
            _close_unused(start.started)
        elif error is None:
            self._num_failures, self._former = 0, None
            self._take(start.number, start.source, start.started.result())
        elif self._former is not None and (
            not isinstance(error, EngineDeadError) or self._num_failures + 1 >= MAX_CRASHES
        ):
            self.plan, self._edition = self._former
            self._former, self._autoscaler = None, Autoscaler(self.plan.scaling)
            self._num_failures, self._not_before = 0, 0.0
            logger.error("pool %s stays as it was: %s", self.name, _told_by(error))
        else:
            pause = PAUSES[min(self._num_failures + 1, len(PAUSES) - 1)]
            self._num_failures, self._not_before = self._num_failures + 1, now + pause
            message = "pool %s: a replica cannot be started, the next try is in %g s: %s"
            logger.error(message, self.name, pause, _told_by(error))

    def _decide(self, now: float) -> None:
        """Find how many are wanted; not while they are replaced."""
        scaling = self.plan.scaling
        if scaling.autoscale is None:
            self._wanted = self.plan.options.replicas
            return
        held = sum(each.engine.num_unfinished for each in self._members if each.asleep)
        if held and not self._wanted:
            self._next_decision = now
        if now < self._next_decision or self._outdated:
            return
        self._next_decision = now + scaling.autoscale_interval
        ready = [each for each in self._members if each.state == "ready"]
        down = sum(each.state == "down" for each in self._members)
        readings = [each.reader.read(now) for each in ready]
        starting = len(self._starts) + down + bool(held)
        self._wanted = self._autoscaler.decide(now, readings, starting, held)

    def _start_missing(self, now: float) -> None:
        missing = self._num_kept - len(self._current) - len(self._starts)
        for member in [each for each in self._members if not each.stays]:
            if missing > 0 and member.edition == self._edition:
                member.leaving_since = None  # it need not go after all
                self.take_back(member.index)
                missing -= 1
        if self._outdated:
            missing = min(missing, 1 - len(self._starts))  # one after another
        if now >= self._not_before:
            for _ in range(missing):
                self._start()

    def _start(self) -> None:
        taken = [each.number for each in self._members] + [each.number for each in self._starts]
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        source = self._prepare(self.plan, number)
        started: Future[StartedEngine] = Future()
        started.set_running_or_notify_cancel()
        self._starts.append(_Start(number, self._edition, source, started))

        def run() -> None:
            try:
                started.set_result(source.start())
            except BaseException as error:
                started.set_exception(error)

        threading.Thread(target=run, name="twostroke-start-engine", daemon=True).start()

    def _retire_surplus(self, now: float) -> None:
        """Have those leave that are too many: outdated ones, then those that are down, and
        those with least to finish.
        """
        current, outdated = self._current, self._outdated
        surplus = len(current) + len(outdated) - self._num_kept
        if outdated and not all(each.engine.takes_requests for each in current):
            return
        leaving = outdated or current
        leaving.sort(
            key=lambda each: (
                *(each.engine.takes_requests, each.engine.num_unfinished, -each.index),
            )
        )
        for member in leaving[: max(0, surplus)]:
            member.leaving_since = now
            self.retire(member.index)

    def _let_sleep(self) -> None:
        """Where none is wanted, end the process of the last; where one is, wake it."""
        for member in self._members:
            idleness = member.engine.idleness
            idleness.limit = None if self._wanted else 0.0
            if self._wanted and member.stays:
                idleness.wake()

    def _end_drained(self, now: float) -> None:
        for member in [each for each in self._members if each.leaving_since is not None]:
            if not member.engine.num_unfinished:
                self._members.remove(member)
                _end(self.remove(member.index).close)
            elif now - (member.leaving_since or 0.0) > self.plan.options.drain_timeout:
                self.hand_off(member.index)


def _close_unused(started: Future[StartedEngine]) -> None:
    """End an engine that is not wanted any more, if it has started."""
    if started.exception() is None:
        _end(started.result().link.close)


def _end(close: Callable[[], None]) -> None:
    """End an engine on a thread, since that may take a while."""
    threading.Thread(target=close, name="twostroke-end-engine").start()


def _told_by(error: BaseException) -> str:
    """An error for the log: what is wrong, and what to do about it."""
    if isinstance(error, TwostrokeError) and error.hint:
        return f"{error} (hint: {error.hint})"
    return str(error)
