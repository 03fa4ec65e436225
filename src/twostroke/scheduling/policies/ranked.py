"""Queues in order of a fixed rank: first come, first served, and by priority."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from twostroke.core.request import Request
from twostroke.scheduling.policies.base import NoBoost, Rank


class RankedPolicy:
    """A queue in order of a rank that does not change while a request waits or runs."""

    ranks_change = False

    def __init__(self, rank: Callable[[Request], Rank]) -> None:
        self.rank = rank
        self.boost = NoBoost()
        self._heap: list[tuple[Rank, Request]] = []
        self._waiting: dict[str, Request] = {}

    def push(self, request: Request) -> None:
        self._waiting[request.request_id] = request
        heapq.heappush(self._heap, (self.rank(request), request))

    def peek(self) -> Request | None:
        while self._heap and not self._is_waiting(self._heap[0][1]):
            heapq.heappop(self._heap)
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
        if len(self._heap) > 2 * len(self._waiting) + 64:  # drop the entries of removed requests
            self._heap = [entry for entry in self._heap if self._is_waiting(entry[1])]
            heapq.heapify(self._heap)

    def finished(self, request: Request) -> None:
        """Nothing to note: the rank depends on no history."""

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Nothing to note: the rank depends on no history."""

    def __len__(self) -> int:
        return len(self._waiting)

    def _is_waiting(self, request: Request) -> bool:
        return self._waiting.get(request.request_id) is request


def arrival_rank(request: Request) -> Rank:
    """Policy ``fcfs``."""
    return (request.sequence_number,)


def priority_rank(request: Request) -> Rank:
    """Policy ``priority``: lower values first, equal ones in order of arrival."""
    return (request.spec.priority, request.sequence_number)
