"""Fair sharing among tenants: the one that has been served least goes first."""

from __future__ import annotations

from twostroke.core.request import Request
from twostroke.scheduling.policies.base import Rank
from twostroke.scheduling.policies.ranked import RankedPolicy, arrival_rank
from twostroke.scheduling.policies.tenant_boost import TenantBoost


class FairPolicy:
    """Virtual token counters (Sheng et al., OSDI 2024, algorithm 2).

    Each tenant's counter grows with the tokens that its requests get; the smallest goes first. A
    tenant without waiting requests saves up no credit: when one joins the queue, the tenant's
    counter is lifted to the smallest of those that wait, or else to that of the tenant whose last
    request left the queue last. So of two tenants that always have requests waiting, neither gets
    ahead of the other by more than what can run at once is worth. Within a tenant the order is
    that of arrival. A tenant that runs less than its share need not wait for those that run more
    (``tenant_boost.py``).

    Unlike the paper, a prompt is charged as it runs, and what the prefix cache held is not charged.

    Args:
        input_weight: What a prompt token costs.
        output_weight: What an output token costs; decoding uses the hardware worse than prefill.
    """

    ranks_change = True

    def __init__(self, input_weight: float = 1.0, output_weight: float = 2.0) -> None:
        self.counters: dict[str, float] = {}
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._queues: dict[str, RankedPolicy] = {}  # of the tenants that have requests waiting
        self._last_admission: dict[str, int] = {}
        self._num_admitted = 0
        self._last_to_leave: str | None = None
        self.boost = TenantBoost(self._served)

    def rank(self, request: Request) -> Rank:
        """Counter first; of equal ones, the tenant whose last admission is longest ago."""
        return (*self._served(request.tenant), request.sequence_number)

    def push(self, request: Request) -> None:
        self.boost.leave(request)
        queue = self._queues.get(request.tenant)
        if queue is None:
            self._lift(request.tenant)
            self.boost.first_to_wait(request)
            queue = self._queues[request.tenant] = RankedPolicy(arrival_rank)
        queue.push(request)

    def peek(self) -> Request | None:
        heads = (head for queue in self._queues.values() if (head := queue.peek()) is not None)
        return min(heads, key=self.rank, default=None)

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty queue")
        self.boost.enter(request)
        self._queues[request.tenant].pop()
        self._last_admission[request.tenant] = self._num_admitted
        self._num_admitted += 1
        self._close_if_empty(request.tenant)
        return request

    def remove(self, request: Request) -> None:
        self.boost.leave(request)
        queue = self._queues.get(request.tenant)
        if queue is not None:
            queue.remove(request)
            self._close_if_empty(request.tenant)

    def finished(self, request: Request) -> None:
        """What it got has been charged."""
        self.boost.leave(request)

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        if output_tokens:
            self.boost.end_boost(request)
        cost = self._input_weight * prompt_tokens + self._output_weight * output_tokens
        self.counters[request.tenant] = self.counters.get(request.tenant, 0.0) + cost

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def _served(self, tenant: str) -> Rank:
        return (self.counters.get(tenant, 0.0), self._last_admission.get(tenant, -1))

    def _lift(self, tenant: str) -> None:
        """Lift a tenant's counter to those that wait.

        A preempted request lifts its tenant too: else running a little would save up credit.
        """
        waiting = [self.counters[name] for name in self._queues]
        if not waiting and self._last_to_leave is not None:
            waiting = [self.counters[self._last_to_leave]]
        before = self.counters.get(tenant, 0.0)
        self.counters[tenant] = max(before, min(waiting, default=0.0))
        self.boost.forgo_credit(tenant, self.counters[tenant] - before)

    def _close_if_empty(self, tenant: str) -> None:
        if not len(self._queues[tenant]):
            del self._queues[tenant]
            self._last_to_leave = tenant
