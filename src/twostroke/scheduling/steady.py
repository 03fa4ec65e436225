"""Many steps in one go, where every one of them would have the same plan but for one more token each.

While nobody arrives, every running request decodes: each step gives all of them one token, allocates a block where one
begins and puts it into the prefix cache's index where one ends. ``steady_steps`` says for how many steps that is all
that can happen; ``advance`` leaves scheduler and KV manager exactly as that many calls of ``schedule`` and ``update``
would have left them. The simulator jumps with it; ``tests/scheduling/test_steady.py`` compares both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.stopping import check_stop
from twostroke.types import Request


@dataclass(frozen=True, slots=True)
class SteadyRun:
    """What a run of steps did.

    Attributes:
        finished: Those that ended with its last step.
        taken: For each block that was taken, in order, in which of the steps.
    """

    finished: list[Request]
    taken: list[int]


def steady_steps(scheduler: Scheduler, token: int, most: int) -> int:
    """How many of the next steps, at most ``most``, only decode; 0 if the next one does anything else.

    Requests may end in the last of them, none before. Whoever calls it knows that nobody arrives or is aborted
    meanwhile, and that every request draws ``token`` in every step.
    """
    running = scheduler.running
    if not running or len(running) > scheduler.config.max_num_batched_tokens:
        return 0
    if scheduler.config.policy == "fair":
        return 0  # The order of requests, and so of blocks, depends on the tokens of this very run.
    if scheduler.has_arrivals() and _looks_free(scheduler):
        return 0  # They are looked at but once then, by the step that most likely lets them in.
    requests = scheduler.ranked()
    steps = most
    for request in requests:
        computed, ends = request.num_computed_tokens, request.stop_token_ids
        if len(request.token_ids) != computed + 1 or computed < request.num_prompt_tokens or (ends and token in ends):
            return 0
        if request.max_total_tokens - computed <= steps:
            steps = request.max_total_tokens - computed - 1
    # Without samples of one prompt, nobody shares a block that is not full.
    copies = scheduler.kv.pool.shares and any(request.leader is not None for request in requests)
    if copies and any(map(scheduler.kv.must_copy, requests)):
        return 0
    return _until_someone_enters(scheduler, scheduler.kv.num_decode_steps(requests, steps))


def advance(scheduler: Scheduler, token: int, steps: int, now: float) -> SteadyRun:
    """Take ``steps`` steps, which ``steady_steps`` has allowed, the last of which ends at ``now``."""
    requests = scheduler.ranked()
    tokens = [token] * steps
    for request in requests:
        request.token_ids += tokens
    taken = scheduler.kv.decode(requests, steps)
    finished = []
    size = scheduler.kv.block_size
    for request in requests:
        computed = request.num_computed_tokens
        if not computed % size:
            scheduler.kv.commit(request)
        if computed + 1 >= request.max_total_tokens and (stop := check_stop(request)):
            scheduler.finish(request.request_id, stop.reason, now)
            finished.append(request)
    scheduler.skip_steps(steps)
    return SteadyRun(finished, taken)


def _looks_free(scheduler: Scheduler) -> bool:
    """Whether there may be a place for the first waiting request, judged without looking for its prefix."""
    head = scheduler.policy.peek()
    full = len(scheduler.running) >= scheduler.config.max_num_seqs
    return head is not None and not full and scheduler.kv.blocks_for(head.num_tokens) <= scheduler.kv.pool.num_free


def _until_someone_enters(scheduler: Scheduler, steps: int) -> int:
    """``steps``, less those in which the first waiting request might find room.

    A run frees no block, so whoever lacks room goes on to lack it, unless a running request happens to write the very
    prefix that it looks for.
    """
    if not steps or not len(scheduler.policy):
        return steps
    request = scheduler.policy.peek()
    config, kv = scheduler.config, scheduler.kv
    full = len(scheduler.running) >= min(config.max_num_batched_tokens, config.max_num_seqs)
    if request is None or full:
        return steps
    prefix = kv.find_prefix(request)
    if kv.has_room(request, prefix, kv.num_blocks_promised(scheduler.running.values())):
        return 0
    if prefix.looked_up:
        for other in scheduler.running.values():
            steps = min(steps, _steps_before_sharing(kv, request, other, len(prefix.blocks)))
    return steps


def _steps_before_sharing(kv: KVCacheManager, waiting: Request, running: Request, index: int) -> int:
    """Steps until ``running`` has filled its block, if so far it has written what ``waiting`` looks for; else many."""
    size, never = kv.block_size, running.max_total_tokens
    written = running.num_computed_tokens // size
    if written > index or index >= (waiting.num_tokens - 1) // size:
        return never
    # A sample on its leader's blocks may have no hashes of its own yet: it might match, so the run is cut short.
    known = written and len(running.block_hashes) >= written
    if known and running.block_hashes[written - 1] != waiting.block_hashes[written - 1]:
        return never
    return (written + 1) * size - running.num_computed_tokens
