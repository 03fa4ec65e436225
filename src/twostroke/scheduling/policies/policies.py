"""Who goes first: the order of the waiting queue, and whom a shortage of blocks hits."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from twostroke.core.config import SchedulerConfig
from twostroke.core.request import Request
from twostroke.core.step import StepPlan
from twostroke.scheduling.policies.newcomers import Newcomers

Rank = tuple[float, ...]


class SchedulingPolicy(Protocol):
    """Owns the waiting requests. A smaller rank goes first; ranks are unique.

    ``peek`` may answer ``None`` while requests wait (static batching holds them back). ``finished``
    is called once for each request that ends after it was popped. ``charge`` is told of each token
    once: prompt tokens when they are first scheduled (not those that the cache held, nor those
    computed again after a preemption), output tokens when they are known. A rank may change with
    it.

    ``newcomer`` names the waiting request, if any, that goes before those that run; then it is what
    ``peek`` answers. ``displace`` names a running one that the scheduler is to preempt for it.
    ``hurrying`` tells whose prompts go before the others' tokens, and ``budget`` caps the tokens of
    a step that carries a request (``most``: the step's own cap).
    """

    def rank(self, request: Request) -> Rank: ...

    def push(self, request: Request) -> None: ...

    def peek(self) -> Request | None: ...

    def pop(self) -> Request: ...

    def remove(self, request: Request) -> None: ...

    def finished(self, request: Request) -> None: ...

    def charge(
        self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0
    ) -> None: ...

    def newcomer(self) -> Request | None: ...

    def displace(self, newcomer: Request) -> Request | None: ...

    def hurrying(self, requests: Sequence[Request]) -> Sequence[Request]: ...

    def budget(self, request: Request, plan: StepPlan, most: int) -> int: ...

    def __len__(self) -> int: ...


class NoNewcomers:
    """Nobody makes way for anybody."""

    def newcomer(self) -> Request | None:
        return None

    def displace(self, newcomer: Request) -> Request | None:
        return None

    def hurrying(self, requests: Sequence[Request]) -> Sequence[Request]:
        return ()

    def budget(self, request: Request, plan: StepPlan, most: int) -> int:
        return most


class RankedPolicy(NoNewcomers):
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
        if (
            len(self._heap) > 2 * len(self._waiting) + 64
        ):  # what was removed must not be kept for ever
            self._heap = [
                entry for entry in self._heap if self._waiting.get(entry[1].request_id) is entry[1]
            ]
            heapq.heapify(self._heap)

    def finished(self, request: Request) -> None:
        """Nothing to note: the rank knows no history."""

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Nothing to note, either."""

    def __len__(self) -> int:
        return len(self._waiting)


def arrival_rank(request: Request) -> Rank:
    return (request.sequence_number,)


def priority_rank(request: Request) -> Rank:
    return (request.priority, request.sequence_number)


class FairPolicy:
    """The tenant that has been served least goes first: virtual token counters (Sheng et al., OSDI
    2024, algorithm 2).

    Each tenant's counter grows with the tokens that its requests get. A tenant none of whose
    requests wait saves up no credit: when one joins the queue, its counter is lifted to the
    smallest of those that wait, or else to that of the tenant who left the queue last. So of two
    tenants that always have requests waiting, neither gets ahead of the other by more than what can
    run at once is worth. Within a tenant the order is that of arrival. A tenant that has nothing
    running need not wait for those that have much (``scheduling/newcomers.py``).

    Unlike the paper, a prompt is charged as it runs, and what the prefix cache held is not charged.

    Args:
        input_weight: What a prompt token costs.
        output_weight: What an output token costs; decoding uses the hardware worse than prefill.
    """

    def __init__(self, input_weight: float = 1.0, output_weight: float = 2.0) -> None:
        self.counters: dict[str, float] = {}
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._queues: dict[str, RankedPolicy] = {}  # of the tenants that have requests waiting
        self._last_admission: dict[str, int] = {}
        self._num_admitted = 0
        self._last_to_leave: str | None = None
        self._newcomers = Newcomers(self._served)
        self.hurrying = self._newcomers.hurrying
        self.budget = self._newcomers.budget

    def rank(self, request: Request) -> Rank:
        """Counter first; of equal ones, who was let in longest ago, so that a newcomer waits for
        nobody.
        """
        return (*self._served(request.tenant), request.sequence_number)

    def push(self, request: Request) -> None:
        self._newcomers.leave(request)
        queue = self._queues.get(request.tenant)
        if queue is None:
            self._lift(request.tenant)
            queue = self._queues[request.tenant] = RankedPolicy(arrival_rank)
        queue.push(request)

    def peek(self) -> Request | None:
        heads = (head for queue in self._queues.values() if (head := queue.peek()) is not None)
        return min(heads, key=self.rank, default=None)

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty queue")
        self._newcomers.enter(request, hurries=self._newcomers.is_newcomer(request))
        self._queues[request.tenant].pop()
        self._last_admission[request.tenant] = self._num_admitted
        self._num_admitted += 1
        self._close_if_empty(request.tenant)
        return request

    def remove(self, request: Request) -> None:
        self._newcomers.leave(request)
        queue = self._queues.get(request.tenant)
        if queue is not None:
            queue.remove(request)
            self._close_if_empty(request.tenant)

    def finished(self, request: Request) -> None:
        """What it got has been charged."""
        self._newcomers.leave(request)

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        if output_tokens:
            self._newcomers.has_answered(request)
        cost = self._input_weight * prompt_tokens + self._output_weight * output_tokens
        self.counters[request.tenant] = self.counters.get(request.tenant, 0.0) + cost

    def newcomer(self) -> Request | None:
        head = self.peek()
        return head if head is not None and self._newcomers.is_newcomer(head) else None

    def displace(self, newcomer: Request) -> Request | None:
        return self._newcomers.displace(newcomer)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _served(self, tenant: str) -> Rank:
        return (self.counters.get(tenant, 0.0), self._last_admission.get(tenant, -1))

    def _lift(self, tenant: str) -> None:
        """A preempted request lifts its tenant too: else running on a little would be a way to save
        up credit.
        """
        waiting = [self.counters[other] for other in self._queues]
        if not waiting and self._last_to_leave is not None:
            waiting = [self.counters[self._last_to_leave]]
        before = self.counters.get(tenant, 0.0)
        self.counters[tenant] = max(before, min(waiting, default=0.0))
        self._newcomers.forgo(tenant, self.counters[tenant] - before)

    def _close_if_empty(self, tenant: str) -> None:
        if not len(self._queues[tenant]):
            del self._queues[tenant]
            self._last_to_leave = tenant


class StaticBatches(NoNewcomers):
    """Holds all waiting requests back until the batch that runs has ended, then lets the next batch
    in whole.

    This is how servers batched before iteration-level scheduling (Yu et al., Orca, OSDI 2022); it
    is here to be compared with.
    """

    def __init__(self, queue: SchedulingPolicy, batch_size: int) -> None:
        self._queue = queue
        # In the order in which they were let in: a queue whose ranks change is asked only once.
        self._batch = RankedPolicy(lambda request: (self._members[request.request_id],))
        self._batch_size = batch_size
        self._members: dict[str, int] = {}
        self._num_let_in = 0

    def rank(self, request: Request) -> Rank:
        return self._queue.rank(request)

    def push(self, request: Request) -> None:
        (self._batch if request.request_id in self._members else self._queue).push(request)

    def peek(self) -> Request | None:
        if not self._members:
            for _ in range(min(self._batch_size, len(self._queue))):
                request = self._queue.pop()
                self._members[request.request_id] = self._num_let_in
                self._num_let_in += 1
                self._batch.push(request)
        return self._batch.peek()

    def pop(self) -> Request:
        return self._batch.pop()

    def remove(self, request: Request) -> None:
        self._queue.remove(request)
        self._batch.remove(request)
        self._members.pop(request.request_id, None)

    def finished(self, request: Request) -> None:
        self._members.pop(request.request_id, None)
        self._queue.finished(request)

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        self._queue.charge(request, prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def __len__(self) -> int:
        return len(self._queue) + len(self._batch)


def make_policy(config: SchedulerConfig) -> SchedulingPolicy:
    queue: SchedulingPolicy
    if config.policy == "fair":
        queue = FairPolicy(config.fair_input_weight, config.fair_output_weight)
    else:
        queue = RankedPolicy(priority_rank if config.policy == "priority" else arrival_rank)
    return StaticBatches(queue, config.max_num_seqs) if config.batching == "static" else queue


def pick_victim(policy: SchedulingPolicy, running: Iterable[Request]) -> Request:
    """The request that matters least: the one with the largest rank."""
    return max(running, key=policy.rank)
