"""Static batching: how servers batched before iteration-level scheduling."""

from __future__ import annotations

from twostroke.core.request import Request
from twostroke.scheduling.policies.base import NoBoost, Rank, SchedulingPolicy
from twostroke.scheduling.policies.ranked import RankedPolicy


class StaticBatches:
    """Holds all waiting requests back until the running batch has ended, then admits the next.

    It is here to be compared with (Yu et al., Orca, OSDI 2022).

    Args:
        queue: The order in which batches are filled.
        batch_size: Requests in a batch, at most.
    """

    def __init__(self, queue: SchedulingPolicy, batch_size: int) -> None:
        self.boost = NoBoost()
        self._queue = queue
        # In the order in which requests joined the batch: a queue whose ranks change is asked once.
        self._batch = RankedPolicy(lambda request: (self._members[request.request_id],))
        self._batch_size = batch_size
        self._members: dict[str, int] = {}
        self._num_joined = 0

    @property
    def ranks_change(self) -> bool:
        return self._queue.ranks_change

    def rank(self, request: Request) -> Rank:
        return self._queue.rank(request)

    def push(self, request: Request) -> None:
        (self._batch if request.request_id in self._members else self._queue).push(request)

    def peek(self) -> Request | None:
        if not self._members:
            for _ in range(min(self._batch_size, len(self._queue))):
                request = self._queue.pop()
                self._members[request.request_id] = self._num_joined
                self._num_joined += 1
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
