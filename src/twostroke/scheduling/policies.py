"""Who goes first: the order of the waiting queue, and whom a shortage of blocks hits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Protocol

from twostroke.config import SchedulerConfig
from twostroke.types import Request

Rank = tuple[float, ...]


class SchedulingPolicy(Protocol):
    """Owns the waiting requests. A smaller rank goes first; ranks are unique.

    ``peek`` may answer ``None`` while requests wait (static batching holds them back). ``finished`` is called once for
    each request that ends after it was popped.
    """

    def rank(self, request: Request) -> Rank: ...

    def push(self, request: Request) -> None: ...

    def peek(self) -> Request | None: ...

    def pop(self) -> Request: ...

    def remove(self, request: Request) -> None: ...

    def finished(self, request: Request) -> None: ...

    def __len__(self) -> int: ...


class RankedPolicy:
    """A queue in order of a fixed rank.

    Args:
        rank: Must not change while the request waits.
    """

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self.rank = rank
        self._heap: list[tuple[Rank, Request]] = []
        self._waiting: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (self.rank(request), request))

    def peek(self) -> Request | None:
        while self._heap and self._waiting.get(self._heap[0][1].request_id) is not self._heap[0][1]:
            heapq.heappop(self._heap)  # removed meanwhile
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty queue")
        heapq.heappop(self._heap)
        del self._waiting[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        self._waiting.pop(request.request_id, None)
        if len(self._heap) > 2 * len(self._waiting) + 64:  # what was removed must not be kept for ever
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[1].request_id) is entry[1]]
            heapq.heapify(self._heap)

    def finished(self, request: Request) -> None:
        """Nothing to note: the rank knows no history."""

    def __len__(self) -> int:
        return len(self._waiting)


def arrival_rank(request: Request) -> Rank:
    return (request.sequence_number,)


def priority_rank(request: Request) -> Rank:
    return (request.priority, request.sequence_number)


class StaticBatches:
    """Holds all waiting requests back until the batch that runs has ended, then lets the next batch in whole.

    This is how servers batched before iteration-level scheduling (Yu et al., Orca, OSDI 2022); it is here to be
    compared with.
    """

    def __init__(self, queue: SchedulingPolicy, batch_size: int) -> None:
        self._queue = queue
        self._batch = RankedPolicy(queue.rank)
        self._batch_size = batch_size
        self._members: set[str] = set()

    def rank(self, request: Request) -> Rank:
        return self._queue.rank(request)

    def push(self, request: Request) -> None:
        (self._batch if request.request_id in self._members else self._queue).push(request)

    def peek(self) -> Request | None:
        if not self._members:
            for _ in range(min(self._batch_size, len(self._queue))):
                request = self._queue.pop()
                self._members.add(request.request_id)
                self._batch.push(request)
        return self._batch.peek()

    def pop(self) -> Request:
        return self._batch.pop()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)
        self._batch.remove(request)
        self._members.discard(request.request_id)

    def finished(self, request: Request) -> None:
        self._members.discard(request.request_id)
        self._queue.finished(request)

    def __len__(self) -> int:
        return len(self._queue) + len(self._batch)


def make_policy(config: SchedulerConfig) -> SchedulingPolicy:
    queue = RankedPolicy(priority_rank if config.policy == "priority" else arrival_rank)
    return StaticBatches(queue, config.max_num_seqs) if config.batching == "static" else queue


def pick_victim(policy: SchedulingPolicy, running: Iterable[Request]) -> Request:
    """The request that matters least: the one with the largest rank."""
    return max(running, key=policy.rank)
