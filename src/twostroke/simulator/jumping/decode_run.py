"""How many steps in a row will only decode, so that a simulation can take them in one go.

In such a run every running request gets one token in each step, and nothing else happens: no
request arrives, enters, ends before the last step, or is preempted. It is enough to know when that
is over. ``jump`` then leaves everything as single steps would;
``tests/simulator/jumping/test_decode_run.py`` compares both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twostroke.core.request import Request
from twostroke.core.step import Decision, Reason, StepPlan
from twostroke.scheduling.scheduler import Scheduler

# Longest run taken in one go: bounds what is computed in vain when an arrival cuts a run short.
MAX_STEPS = 4096


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """The next ``max_steps`` steps, all of which only decode.

    Attributes:
        context: Tokens that the requests attend to together in the first step; each further step
            adds one for each request.
        decisions: Why the waiting requests wait, in each of the steps.
    """

    num_requests: int
    context: int
    max_steps: int
    decisions: list[Decision]


def find_decode_run(scheduler: Scheduler, token: int) -> DecodeRun | None:
    """The run of decode steps that is ahead, if two steps or more are; each draws ``token``."""
    running = list(scheduler.running.values())
    if not running or scheduler.policy.ranks_change:  # then each token may change the next plan
        return None
    if len(running) > scheduler.config.max_num_batched_tokens:
        return None
    # In a step that ends a request, its room is free before that which others give back.
    spared = 1 if scheduler.kv.groups.has_windows or scheduler.kv.states.exist else 0
    steps, context = MAX_STEPS, 0
    for request in running:
        if not _only_decodes(request, token):
            return None
        steps = min(steps, request.max_total_tokens - len(request.token_ids) - spared)
        context += request.num_computed_tokens + 1
    steps = _steps_with_blocks(scheduler, running, steps)
    decisions: list[Decision] = []
    num_waiting = len(scheduler.requests) - len(running)
    if num_waiting != len(scheduler.policy):  # some wait outside the queue, for their own reasons
        return None
    if num_waiting:
        waits = _why_the_first_waits(scheduler, len(running))
        if waits is None:
            return None
        decisions.append(waits)
        if waits.reason is Reason.NO_FREE_BLOCK:
            steps = _steps_before_a_prefix_grows(scheduler, running, steps)
    if steps < 2:
        return None
    return DecodeRun(len(running), context, steps, decisions)


def _only_decodes(request: Request, token: int) -> bool:
    """It lacks one token, holds its blocks alone, and only its length will end it."""
    return (
        len(request.token_ids) - request.num_computed_tokens == 1
        and request.num_computed_tokens >= request.num_prompt_tokens
        and request.leader is None
        and not request.draft_token_ids
        and token not in request.stop_token_ids
    )


def _steps_with_blocks(scheduler: Scheduler, running: Sequence[Request], steps: int) -> int:
    """How many steps, at most ``steps``, have free blocks, even if none came back."""
    size, free = scheduler.kv.block_size, scheduler.kv.pool.num_free
    num_groups = scheduler.kv.groups.count
    if num_groups * len(running) * -(-steps // size) <= free:
        return steps
    begins = [0] * size  # blocks that are begun, by step modulo a block
    for request in running:
        begins[-request.num_computed_tokens % size] += num_groups
    for step in range(steps):
        free -= begins[step % size]
        if free < 0:
            return step
    return steps


def _why_the_first_waits(scheduler: Scheduler, num_running: int) -> Decision | None:
    """What the scheduler decides about the first waiting request in each step of a run.

    ``None``: it might enter. Without windows, a run frees no block, without recurrent layers no
    slot of a state, and it ends no request, so what keeps a request out of its first step keeps it
    out of all, unless its prefix grows.
    """
    request = scheduler.policy.peek()
    if request is None:
        return scheduler.waiting.held_by(Reason.BATCH_RUNNING)
    plan = StepPlan(scheduler.num_steps, 0.0)
    plan.num_tokens, plan.token_budget = num_running, scheduler.budget.tokens
    # Blocks that are promised to others take long to count: at most one in each group, here.
    promised = num_running * scheduler.kv.groups.count
    obstacle = scheduler.find_entry(request, promised, plan, boosted=False).obstacle
    if obstacle is Reason.NO_FREE_BLOCK:
        promised = scheduler.batch.num_promised()
        obstacle = scheduler.find_entry(request, promised, plan, boosted=False).obstacle
    frees_room = scheduler.kv.groups.has_windows or scheduler.kv.states.exist
    if obstacle is None or (obstacle is Reason.NO_FREE_BLOCK and frees_room):
        return None
    return scheduler.waiting.held_by(obstacle)


def _steps_before_a_prefix_grows(
    scheduler: Scheduler, running: Sequence[Request], steps: int
) -> int:
    """``steps``, or fewer: until a request fills the block that the first waiting one looks for.

    With a longer prefix the waiting request needs fewer blocks.
    """
    kv, waiting = scheduler.kv, scheduler.policy.peek()
    prefix = kv.find_prefix(waiting) if waiting is not None else None
    if waiting is None or prefix is None or not prefix.looked_up:
        return steps
    index = len(prefix.blocks)
    if index >= (waiting.num_tokens - 1) // kv.block_size:
        return steps
    content = waiting.block_hashes[index]
    for request in running:
        num_full = request.num_computed_tokens // kv.block_size
        will_fill = num_full <= index < len(request.block_hashes)
        if will_fill and request.block_hashes[index] == content:
            steps = min(steps, (index + 1) * kv.block_size - request.num_computed_tokens)
    return steps
