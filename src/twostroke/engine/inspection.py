"""The engine's state as a message: what runs, what waits, which blocks hold what."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.observer import ObservedStep
from twostroke.observability.snapshot import (
    BlockState,
    EngineSnapshot,
    PrefixChain,
    RequestSnapshot,
)
from twostroke.scheduling.scheduler import Scheduler

# Requests that are remembered after their end: for pages that are opened later, and as the known
# prefixes. Their tokens are not kept.
NUM_REMEMBERED = 512
# Blocks of theirs whose contents are remembered, about 20 MB: long prompts push older ones out.
MAX_KEYS = 2**17
# Of the queue, which may be long, a snapshot looks at the first requests, and copies some of each
# tenant's: it is made between two steps, which wait for it.
MAX_LOOKED_AT, MAX_WAITING = 8192, 256


class EndedRequests:
    """An observer that remembers the latest requests that ended. It costs nothing while they run.

    Attributes:
        states: Oldest first.
        chains: The contents of their blocks, in the same order; of the latest ones at most
            ``MAX_KEYS`` in all, and of the last one always.
    """

    def __init__(self, block_size: int, num_groups: int = 1) -> None:
        self._sizes = block_size, num_groups
        self.states: deque[RequestSnapshot] = deque(maxlen=NUM_REMEMBERED)
        self.chains: deque[PrefixChain] = deque()
        self._num_keys = 0  # of all chains

    def on_add(self, requests: Sequence[Request]) -> None:
        """Nothing has ended."""

    def on_step(self, step: ObservedStep) -> None:
        for request in step.ended:
            self._remember(request)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        for request in requests:
            self._remember(request)

    def close(self) -> None:
        """What is remembered stays readable."""

    def _remember(self, request: Request) -> None:
        self.states.append(RequestSnapshot.of(request))
        if request.block_hashes:
            if len(self.chains) == NUM_REMEMBERED:
                self._num_keys -= len(self.chains.popleft().keys)
            self.chains.append(chain := _chain(request, *self._sizes))
            self._num_keys += len(chain.keys)
            while self._num_keys > MAX_KEYS and len(self.chains) > 1:
                self._num_keys -= len(self.chains.popleft().keys)


def take_snapshot(
    scheduler: Scheduler,
    ended: EndedRequests,
    clock: Callable[[], float],
    *,
    with_blocks: bool = False,
) -> EngineSnapshot:
    """Copy the state; called by the thread that steps, between two steps.

    With blocks it takes about 10 ns for each block there is, so it is made only where asked for.
    """
    kv, running = scheduler.kv, scheduler.running
    sizes = kv.block_size, kv.groups.count
    tables = {request.request_id: kv.block_ids(request) for request in running.values()}
    waiting, blocks = _first_waiting(scheduler), None
    if with_blocks:
        blocks = BlockState(
            num_blocks=kv.pool.num_blocks,
            block_size=kv.block_size,
            tables={request_id: list(table) for request_id, table in tables.items()},
            cached=kv.pool.cached(),
            free=kv.pool.free_in_order(),
            chains=[*ended.chains, *(_chain(r, *sizes) for r in running.values())],
        )
    return EngineSnapshot(
        time=clock(),
        unix_time=time.time(),
        running=[RequestSnapshot.of(r, len(tables[r.request_id])) for r in running.values()],
        waiting=waiting,
        waiting_left_out=len(scheduler.requests) - len(running) - len(waiting),
        ended=list(ended.states),
        blocks=blocks,
    )


def _first_waiting(scheduler: Scheduler) -> list[RequestSnapshot]:
    """The first of each tenant, so that a full queue of one does not hide another's."""
    running, waiting = scheduler.running, list[RequestSnapshot]()
    copied: Counter[str] = Counter()
    for request in islice(scheduler.requests.values(), MAX_LOOKED_AT + len(running)):
        if request.request_id not in running and copied[request.tenant] < MAX_WAITING:
            copied[request.tenant] += 1
            waiting.append(RequestSnapshot.of(request))
    return waiting


def _chain(request: Request, block_size: int, num_groups: int) -> PrefixChain:
    """The contents of its blocks; where layers differ, those of the first group."""
    return PrefixChain(
        request_id=request.request_id,
        tenant=request.tenant,
        keys=request.block_hashes[::num_groups],
        num_found=request.num_cached_tokens // block_size,
    )
