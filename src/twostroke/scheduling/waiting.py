"""Requests that do not run: in the policy's queue, or outside it for a reason of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twostroke.core.request import Request, RequestStatus
from twostroke.core.step import Decision, Reason
from twostroke.kv_cache.block_table import Prefix
from twostroke.scheduling.policies.base import SchedulingPolicy


class Entry(NamedTuple):
    """How a request enters a step: with a cached prefix, unless there is an obstacle."""

    prefix: Prefix
    obstacle: Reason | None = None


class WaitingRequests:
    """Keeps out of the queue what could not run if it were its turn, so that it blocks nothing.

    That is a sample whose leader's prompt, which it will share, is still being computed; and a
    request that was set aside while its blocks are loaded or transferred.

    Args:
        requests: All that have not ended, by id; the scheduler's own mapping.
    """

    def __init__(self, queue: SchedulingPolicy, requests: Mapping[str, Request]) -> None:
        self._queue = queue
        self._requests = requests
        self._samples: dict[str, list[Request]] = {}  # by their leader's id
        self._aside: dict[str, Request] = {}

    def add(self, request: Request) -> None:
        leader = request.leader
        if leader is None or leader.request_id not in self._requests or leader.prompt_computed:
            self._queue.push(request)
        else:
            self._samples.setdefault(leader.request_id, []).append(request)

    def remove(self, request: Request) -> None:
        """Drop a request that has ended while it waited."""
        leader_id = request.leader.request_id if request.leader else ""
        if request in self._samples.get(leader_id, ()):
            self._samples[leader_id].remove(request)
            if not self._samples[leader_id]:
                del self._samples[leader_id]
        elif self._aside.pop(request.request_id, None) is None:
            self._queue.remove(request)

    def leader_is_ready(self, leader: Request) -> None:
        """Queue the samples of a leader whose prompt is computed, or that has ended."""
        for request in self._samples.pop(leader.request_id, ()):
            self._queue.push(request)

    def set_aside(self, request: Request) -> None:
        """Let it wait outside the queue while its prefix is loaded.

        It holds no blocks meanwhile, and ``resume`` queues it again.
        """
        assert request.status is RequestStatus.WAITING
        self.remove(request)
        request.status = RequestStatus.LOADING
        self._aside[request.request_id] = request

    @property
    def num_aside(self) -> int:
        return len(self._aside)

    def resume(self, request_id: str) -> None:
        """Let it wait as if it had just come; harmless if it has ended."""
        if (request := self._aside.pop(request_id, None)) is not None:
            request.status = RequestStatus.WAITING
            self.add(request)

    def held_by(self, obstacle: Reason) -> Decision:
        """Why the first of the queue waits, and with it the rest: an obstacle, or the policy."""
        first = self._queue.peek()
        if first is None:
            return Decision("", Reason.BATCH_RUNNING, behind=len(self._queue))
        return Decision(first.request_id, obstacle, behind=len(self._queue) - 1)

    def decisions(self) -> list[Decision]:
        """Why the requests outside the queue wait."""
        shares = [
            Decision(samples[0].request_id, Reason.SHARES_PROMPT, leader_id, len(samples) - 1)
            for leader_id, samples in self._samples.items()
        ]
        return shares + [Decision(request_id, Reason.LOADING) for request_id in self._aside]
