"""Keeps as many replicas as one pool is to have: starts, scales and replaces them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple

from twostroke.core.errors import EngineDeadError, TwostrokeError
from twostroke.engine.fleet.pool_plan import PoolPlan
from twostroke.engine.fleet.supervised import PoolMember, SupervisedSource
from twostroke.engine.process.engine_process import EngineProcess
from twostroke.engine.process.engine_source import StartedEngine
from twostroke.engine.process.process_link import PAUSES
from twostroke.engine.process.replicas import Replicas
from twostroke.routing.autoscaler import Autoscaler

logger = logging.getLogger(__name__)
MAX_CRASHES = 3  # of the first replica of a changed plan, while it starts


class _Start(NamedTuple):
    """A replica that is not ready yet."""

    number: int
    edition: int
    source: SupervisedSource
    started: Future[StartedEngine]


class PoolKeeper:
    """Compares what there is with what is wanted: the plan's number, or the autoscaler's.

    A replica whose process ends is started again by its ``EngineProcess``. One that is to go gets
    no more requests, finishes what it has, and hands on what takes too long. Where the plan has
    changed, replicas are replaced one by one, each once its successor is ready.

    Where none is wanted one stays, asleep: its process ends, and the next request starts another.

    All methods are called on the event loop's thread.

    Args:
        name: The pool's, for people.
        plan: How it is to be.
        replicas: Where requests go; it may have other pools' replicas, too.
        prepare: The source of a replica by its number.
        make: A client of an engine that has started.
        taken: Numbers of all replicas of the model, those that start included.

    Attributes:
        members: Replicas that are ready, or were.
        starts: Those that are not ready yet.
        wanted: How many there are to be.
    """

    def __init__(
        self,
        name: str,
        plan: PoolPlan,
        replicas: Replicas,
        prepare: Callable[[PoolPlan, int], SupervisedSource],
        make: Callable[[SupervisedSource, StartedEngine], EngineProcess],
        taken: Callable[[], Collection[int]],
    ) -> None:
        self.name, self.plan = name, plan
        self._replicas, self._taken = replicas, taken
        self._prepare, self._make = prepare, make
        self.wanted, self._edition, self._num_editions = plan.num_at_first, 0, 1
        self._former: tuple[PoolPlan, int] | None = None  # while none of the next is ready
        self.members: list[PoolMember] = []
        self.starts: list[_Start] = []
        self._autoscaler = Autoscaler(plan.scaling)
        self._next_decision = time.monotonic() + plan.scaling.autoscale_interval
        self._num_failures, self._not_before = 0, 0.0
        self._described = ""

    def describe(self) -> str:
        """One line: which replicas there are, in which processes, and what they do."""
        replicas = [
            *(f"replica {each.number} {each.describe()}" for each in self.members),
            *(f"replica {each.number} starts" for each in self.starts),
        ]
        num_ready = sum(each.state == "ready" for each in self.members)
        return f"{num_ready} of {self.wanted} ready; {', '.join(replicas)}"

    @property
    def numbers(self) -> list[int]:
        """What its replicas are called, those that start included."""
        return [each.number for each in self.members] + [each.number for each in self.starts]

    def end_starts(self) -> None:
        """What is not ready yet is not wanted any more."""
        for each in self.starts:
            each.started.add_done_callback(_close_unused)

    def tick(self) -> None:
        """Come nearer to what is wanted."""
        now = time.monotonic()
        for each in self.members:
            each.look()
        for start in [each for each in self.starts if each.started.done()]:
            self.starts.remove(start)
            self._welcome(start, now)
        self._decide(now)
        self._start_missing(now)
        self._retire_surplus(now)
        self._let_sleep()
        self._end_drained(now)
        if (text := self.describe()) != self._described:
            logger.info("pool %s: %s", self.name, text)
            self._described = text

    def update(self, plan: PoolPlan) -> None:
        """Be like this from now on."""
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
        return [each for each in self.members if each.stays and each.edition == self._edition]

    @property
    def _outdated(self) -> list[PoolMember]:
        """Replicas that serve until others are ready."""
        return [each for each in self.members if each.stays and each.edition != self._edition]

    @property
    def _num_kept(self) -> int:
        """How many there are to be, with one that sleeps."""
        return max(1, self.wanted)

    def take(self, number: int, source: SupervisedSource, started: StartedEngine) -> None:
        """A replica is ready."""
        engine = self._make(source, started)
        engine.holds_requests = True
        if self.members and self.members[0].source.config.adapters == source.config.adapters:
            engine.mirror.become(self._replicas.adapters)  # what clients have loaded and unloaded
        index = self._replicas.add(engine, self.plan.alike())
        self.members.append(PoolMember(index, number, self._edition, source, engine))

    def _welcome(self, start: _Start, now: float) -> None:
        """A start has come to its end: have the replica serve, or note why there is none."""
        error = start.started.exception()
        if start.edition != self._edition:
            _close_unused(start.started)
        elif error is None:
            self._num_failures, self._former = 0, None
            self.take(start.number, start.source, start.started.result())
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
            self.wanted = self.plan.options.replicas
            return
        held = sum(each.engine.num_unfinished for each in self.members if each.asleep)
        if held and not self.wanted:
            self._next_decision = now
        if now < self._next_decision or self._outdated:
            return
        self._next_decision = now + scaling.autoscale_interval
        ready = [each for each in self.members if each.state == "ready"]
        down = sum(each.state == "down" for each in self.members)
        readings = [each.reader.read(now) for each in ready]
        starting = len(self.starts) + down + bool(held)
        self.wanted = self._autoscaler.decide(now, readings, starting, held)

    def _start_missing(self, now: float) -> None:
        missing = self._num_kept - len(self._current) - len(self.starts)
        for member in [each for each in self.members if not each.stays]:
            if missing > 0 and member.edition == self._edition:
                member.leaving_since = None  # it need not go after all
                self._replicas.take_back(member.index)
                missing -= 1
        if self._outdated:
            missing = min(missing, 1 - len(self.starts))  # one after another
        if now >= self._not_before:
            for _ in range(missing):
                self._start()

    def _start(self) -> None:
        taken = self._taken()
        number = next(number for number in range(len(taken) + 1) if number not in taken)
        source = self._prepare(self.plan, number)
        started: Future[StartedEngine] = Future()
        started.set_running_or_notify_cancel()
        self.starts.append(_Start(number, self._edition, source, started))

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
            self._replicas.retire(member.index)

    def _let_sleep(self) -> None:
        """Where none is wanted, end the process of the last; where one is, wake it."""
        for member in self.members:
            idleness = member.engine.idleness
            idleness.limit = None if self.wanted else 0.0
            if self.wanted and member.stays:
                idleness.wake()

    def _end_drained(self, now: float) -> None:
        for member in [each for each in self.members if each.leaving_since is not None]:
            if not member.engine.num_unfinished:
                self.members.remove(member)
                _end(self._replicas.remove(member.index).close)
            elif now - (member.leaving_since or 0.0) > self.plan.options.drain_timeout:
                self._replicas.hand_off(member.index)


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
