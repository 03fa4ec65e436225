"""Threads on which tenants take turns, with stacks that no grammar exhausts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

T = TypeVar("T")
# What is done piece by piece: after each piece another tenant may have its turn.
Pieces = Generator[None, None, T]

# The grammar library recurses through rules and references, with some 10 kB for each. What a client
# may send at most has 9,000 of them in a chain; of the memory only what is used is ever taken.
STACK_BYTES = 256 * 2**20
HALF_LIFE = 1.0  # seconds after which half of what a tenant has used is forgotten
LONG_TURN = 0.001  # seconds; a tenant rests after no shorter ones
_STACK_SIZE = threading.Lock()  # held while the interpreter's size of new stacks is another one


def in_one_piece(work: Callable[[], T]) -> Pieces[T]:
    """Work that cannot be divided."""
    return work()
    yield


@dataclass(order=True, slots=True)
class _Job:
    cost: float
    number: int
    pieces: Pieces[Any] = field(compare=False)
    rest: float = field(compare=False)
    done: Future[Any] = field(compare=False, default_factory=Future)


@dataclass(slots=True)
class _Tenant:
    jobs: list[_Job] = field(default_factory=list)  # a heap
    num_running: int = 0
    used: float = 0.0
    used_at: float = 0.0
    rests_until: float = 0.0

    def used_lately(self, now: float) -> float:
        return float(self.used * 0.5 ** ((now - self.used_at) / HALF_LIFE))


class TurnThreads:
    """Does the work of tenants: next is always that of whoever has used least of late.

    A tenant with a name has one thread at a time, so that where there are two, another one's work
    waits behind no more than the piece that it finds running. Without keys all share the tenant "".

    Args:
        name: Name of the threads, which the first work starts.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._tenants: dict[str, _Tenant] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._num_active = self._num_jobs = 0
        self._closed = False

    def submit(
        self, tenant: str, pieces: Pieces[T], *, cost: float = 0.0, rest: float = 0.0
    ) -> Future[T]:
        """Have work done. Cancelling the future drops what has not begun, and all that it holds.

        Args:
            cost: The cheapest of a tenant's work is next; among equals the oldest.
            rest: So many times as long as a turn takes, the tenant gets no other one.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("the threads have been closed")
            if self._threads is None:
                self._threads = _deep_threads(self._name, self._num_threads)
            self._num_jobs += 1
            job = _Job(cost, self._num_jobs, pieces, rest)
            heappush(self._tenants.setdefault(tenant, _Tenant()).jobs, job)
            if self._num_active < self._num_threads:
                self._num_active += 1
                self._threads.submit(self._work)
            self._changed.notify()
        # Not with the job itself, which its future would then keep, with its work.
        job.done.add_done_callback(partial(self._drop_cancelled, tenant, job.number))
        return job.done

    def num_waiting(self) -> dict[str, int]:
        """How much work of each tenant that has some is not done, and not being done."""
        with self._changed:
            return {name: len(tenant.jobs) for name, tenant in self._tenants.items() if tenant.jobs}

    def close(self) -> None:
        """Drop what waits, and end the threads after the pieces that run."""
        with self._changed:
            self._closed = True
            dropped = [job for tenant in self._tenants.values() for job in tenant.jobs]
            for tenant in self._tenants.values():
                tenant.jobs.clear()
            self._changed.notify_all()
        for job in dropped:
            job.done.cancel()
        if self._threads is not None:
            self._threads.shutdown()

    def _drop_cancelled(self, name: str, number: int, done: Future[Any]) -> None:
        if not done.cancelled():
            return
        with self._changed:
            if (tenant := self._tenants.get(name)) is not None:
                tenant.jobs = [job for job in tenant.jobs if job.number != number]
                heapify(tenant.jobs)

    def _work(self) -> None:
        """A thread: take turns until there is nothing for it."""
        while (turn := self._next_turn()) is not None:
            tenant, job = turn
            began = time.monotonic()
            goes_on = _advance(job)
            self._end_turn(tenant, job, time.monotonic() - began, goes_on=goes_on)
            del turn, tenant, job  # what it was about may be freed while this waits

    def _next_turn(self) -> tuple[_Tenant, _Job] | None:
        with self._changed:
            while True:
                now = time.monotonic()
                open_to = {
                    name: tenant
                    for name, tenant in self._tenants.items()
                    if tenant.jobs and not (name and tenant.num_running)
                }
                ready = [tenant for tenant in open_to.values() if tenant.rests_until <= now]
                if ready:
                    chosen = min(ready, key=lambda tenant: tenant.used_lately(now))
                    chosen.num_running += 1
                    return chosen, heappop(chosen.jobs)
                if not open_to:
                    self._num_active -= 1
                    return None
                self._changed.wait(min(tenant.rests_until for tenant in open_to.values()) - now)

    def _end_turn(self, tenant: _Tenant, job: _Job, seconds: float, *, goes_on: bool) -> None:
        with self._changed:
            now = time.monotonic()
            tenant.num_running -= 1
            tenant.used, tenant.used_at = tenant.used_lately(now) + seconds, now
            if seconds > LONG_TURN:
                tenant.rests_until = now + job.rest * seconds
            if goes_on and self._closed:
                job.done.set_exception(RuntimeError("the threads have been closed"))
            elif goes_on:
                heappush(tenant.jobs, job)
            for name, other in list(self._tenants.items()):
                if not (other.jobs or other.num_running) and other.used_lately(now) < LONG_TURN:
                    del self._tenants[name]


def _advance(job: _Job) -> bool:
    """Do one piece; returns whether there is more."""
    if not job.done.running() and not job.done.set_running_or_notify_cancel():
        return False
    try:
        next(job.pieces)
        return True
    except StopIteration as end:
        job.done.set_result(end.value)
    except BaseException as error:  # a panic of the library's Rust is no Exception
        job.done.set_exception(error)
    return False


def _deep_threads(name: str, count: int) -> ThreadPoolExecutor:
    """An executor all of whose threads are there already, with deep stacks."""
    threads = ThreadPoolExecutor(count, thread_name_prefix=name)
    all_there = threading.Barrier(count + 1)
    with _STACK_SIZE:
        former = threading.stack_size(STACK_BYTES)
        try:
            for _ in range(count):
                threads.submit(all_there.wait)  # each keeps its thread, so the next gets another
        finally:
            threading.stack_size(former)
    all_there.wait()
    return threads
