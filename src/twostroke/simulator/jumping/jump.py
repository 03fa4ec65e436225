"""Takes a run of equal decode steps at once, and leaves everything as single steps would."""

from __future__ import annotations

from typing import NamedTuple

from twostroke.core.request import FinishReason, Request
from twostroke.scheduling.scheduler import Scheduler


class Jump(NamedTuple):
    """Steps that were taken at once.

    Attributes:
        requests: All that ran, in order.
        blocks: Free and cached blocks after each step, before the last one frees any.
    """

    requests: list[Request]
    blocks: list[tuple[int, int]]


def jump(scheduler: Scheduler, steps: int, token: int, now: float) -> Jump:
    """Take ``steps`` steps at once, in each of which every running request draws ``token``.

    The last one ends at ``now``. ``find_decode_run`` has seen to it that nothing else could have
    happened: each running request lacks one token, holds its blocks alone, and ends in the last
    step or later, by its length; there are blocks enough; no waiting request could be admitted.
    """
    requests, tokens = list(scheduler.batch.in_order()), [token] * steps
    for request in requests:
        request.token_ids += tokens
        request.num_sent_tokens += steps
        scheduler.policy.charge(request, output_tokens=steps)
    scheduler.num_steps += steps
    scheduler.released = []
    blocks = _grow_tables(scheduler, requests, steps)
    for request in requests:
        if request.num_tokens >= request.max_total_tokens:
            scheduler.finish(request.request_id, FinishReason.LENGTH, now)
    return Jump(requests, blocks)


def _grow_tables(
    scheduler: Scheduler, requests: list[Request], steps: int
) -> list[tuple[int, int]]:
    """Let each request compute one more token in each step; returns free and cached blocks.

    The first step looks at all tables, as every step would; of the others only tables at the edge
    of a block change. In each step first the allocations, then the blocks that are full, both in
    order: so free list and index end up as after single steps.
    """
    kv, size = scheduler.kv, scheduler.kv.block_size
    # By the step, modulo a block, in which a request begins a block and its last one is full.
    due: list[list[Request]] = [[] for _ in range(size)]
    for request in requests:
        due[-request.num_computed_tokens % size].append(request)
    starts = {request.request_id: request.num_computed_tokens for request in requests}
    counts = []
    for step in range(steps):
        for request in due[step % size] if step else requests:
            request.num_computed_tokens = starts[request.request_id] + step
            assert kv.allocate_slots(request, 1) is not None, "a run has blocks enough"
        if kv.states.exist:  # checkpoints at blocks that this step fills
            for request in due[(step + 1) % size] if step else requests:
                request.num_computed_tokens = starts[request.request_id] + step
                kv.states.plan(request, 1)
        for request in due[(step + 1) % size]:
            request.num_computed_tokens = starts[request.request_id] + step + 1
            kv.commit(request)
        counts.append((kv.pool.num_free, kv.pool.num_cached))
    for request in requests:
        request.num_computed_tokens = starts[request.request_id] + steps
    return counts
