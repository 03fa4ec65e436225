"""The seam of everything that watches an engine: text, metrics, recordings, statistics, pages.

An observer sees each step after the scheduler has taken in its result. It may read everything it
is given and keep nothing but requests; it changes no request and no plan. (Text is the exception
that the engine knows of: it fills in the outputs' ``text`` and ends requests at stop strings, and
so comes first.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import UNSET

from twostroke.core.kv_tier_config import BlockTransfer, TierChange
from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.core.step import Decision, Reason, ScheduledRequest, StepPlan, StepResult
from twostroke.observability.events import (
    ChangedTable,
    FinishedRequest,
    HeldBackRequest,
    LabelledRequest,
    MovedBlocks,
    PreemptedRequest,
    RefusedRequest,
    ScheduledTokens,
    SchedulerStats,
    StartedRequest,
    StepEvent,
)
from twostroke.observability.frames.prefix_keys import prefix_keys


class Observer(Protocol):
    """All methods are called by the thread that steps, in the order in which things happen."""

    def on_add(self, requests: Sequence[Request]) -> None:
        """The samples of one call were queued."""

    def on_step(self, step: ObservedStep) -> None:
        """A step has ended."""

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        """Requests were ended between two steps: aborted, or by the engine's end."""

    def close(self) -> None:
        """The engine is closed; nothing else will be called."""


@dataclass(slots=True)
class ObservedStep:
    """One step, after the scheduler's ``update``.

    Attributes:
        requests: Those of ``plan.scheduled``, in its order, as the step left them.
        outputs: What they got.
        clock: Seconds on the engine's clock; see ``finished``.
        token_budget: Most tokens that it might have carried.
        prefix_queries: Tokens looked up in the prefix cache in this step.
        prefix_hits: Tokens found there in this step.
        previous_end: When the step before it ended, on that clock.
        ended_before: Requests that ended after the step before this one, and not by a step.
        refused: Calls that were refused after it.
        tells_tables: Whether what block tables got is all that happens to them: blocks that leave a
            window are given back without a word.
        read_stats: Counts the scheduler's state; see ``stats``.
    """

    plan: StepPlan
    result: StepResult
    requests: Sequence[Request]
    outputs: Sequence[RequestOutput]
    clock: Callable[[], float]
    read_stats: Callable[[], SchedulerStats]
    token_budget: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    previous_end: float = 0.0
    ended_before: Sequence[Request] = ()
    refused: Sequence[RefusedRequest] = ()
    tells_tables: bool = True
    _finished: float | None = None
    _stats: SchedulerStats | None = None
    _event: StepEvent | None = None

    @property
    def began(self) -> float:
        """When it was planned or, if the step before still ran then, when that had ended."""
        return max(self.plan.time, self.previous_end)

    @property
    def finished(self) -> float:
        """When the step ended: with its text, so when it is first asked for after that."""
        if self._finished is None:
            self._finished = self.clock()
        return self._finished

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's state after the step, counted when it is first asked for."""
        if self._stats is None:
            self._stats = self.read_stats()
        return self._stats

    @property
    def ended(self) -> list[Request]:
        """Requests that ended with this step."""
        return [request for request in self.requests if request.finish_reason is not None]

    @property
    def started(self) -> list[Request]:
        """Requests that ran for the first time."""
        return [each for each in self.requests if each.first_scheduled_time == self.plan.time]

    @property
    def event(self) -> StepEvent:
        """The step as a record that lasts, made when it is first asked for."""
        if self._event is None:
            self._event = self._make_event()
        return self._event

    def _make_event(self) -> StepEvent:
        plan, result = self.plan, self.result
        pairs = list(zip(plan.scheduled.values(), self.requests, strict=True))
        started = self.started
        return make_event(
            self.stats,
            plan.decisions,
            step=plan.step,
            time=self.began,
            duration=self.finished - self.began,
            scheduled=[_scheduled_tokens(share, r, plan, result) for share, r in pairs],
            num_tokens=plan.num_tokens,
            token_budget=self.token_budget,
            prefix_queries=self.prefix_queries,
            prefix_hits=self.prefix_hits,
            finished=_finished([*self.ended_before, *self.ended]),
            labelled=[
                LabelledRequest(request_id=request.request_id, labels=dict(request.spec.labels))
                for request in started
                if request.spec.labels
            ],
            refused=list(self.refused),
            block_loads=_moved(plan.block_loads),
            block_saves=_moved(plan.block_saves, result.tier_changes),
            loaded=result.loaded,
            failed_loads=result.failed_loads,
            started=[_started(request, self.tells_tables) for request in started],
            depths=plan.depth_changes,
            block_tables=[
                ChangedTable(
                    request_id=share.request_id,
                    first=share.first_new_block,
                    blocks=share.new_block_ids,
                )
                for share in plan.scheduled.values()
                if share.new_block_ids and self.tells_tables
            ],
            timings=result.timings,
            host_wait=plan.host_wait,
            error=result.failure,
        )


def make_event(stats: SchedulerStats, decisions: Sequence[Decision], **fields: object) -> StepEvent:
    """A record with the scheduler's state after the step, and with what it decided against."""
    waste = 1 - stats.used_slots / stats.allocated_slots if stats.allocated_slots else 0.0
    return StepEvent(
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        total_blocks=stats.total_blocks,
        free_blocks=stats.free_blocks,
        cached_blocks=stats.cached_blocks,
        allocated_slots=stats.allocated_slots,
        used_slots=stats.used_slots,
        kv_waste=min(1.0, max(0.0, waste)),
        preempted=[
            PreemptedRequest(request_id=d.request_id, by=d.by)
            for d in decisions
            if d.reason is Reason.PREEMPTED
        ],
        held_back=[
            HeldBackRequest(request_id=d.request_id, reason=d.reason, by=d.by, behind=d.behind)
            for d in decisions
            if d.reason is not Reason.PREEMPTED
        ],
        **fields,  # type: ignore[arg-type]
    )


def _finished(requests: Sequence[Request]) -> list[FinishedRequest]:
    return [
        FinishedRequest(request_id=request.request_id, reason=request.finish_reason)
        for request in requests
        if request.finish_reason is not None
    ]


def _started(request: Request, tells_tables: bool) -> StartedRequest:
    return StartedRequest(
        request_id=request.request_id,
        arrival_time=request.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        max_total_tokens=request.max_total_tokens,
        num_cached_tokens=request.num_cached_tokens,
        tenant=request.tenant,
        priority=request.spec.priority,
        prefix_hit=UNSET if request.prefix_hit is None else request.prefix_hit,
        prefix_keys=prefix_keys(request.block_hashes) if tells_tables else [],
    )


def _scheduled_tokens(
    share: ScheduledRequest, request: Request, plan: StepPlan, result: StepResult
) -> ScheduledTokens:
    num_new_tokens = len(result.token_ids.get(share.request_id, ()))
    if num_new_tokens > 1:  # the one that ended it may be followed by others, which it did not get
        start = share.start + share.num_tokens - len(share.draft_token_ids)
        num_new_tokens = min(num_new_tokens, request.num_tokens - start)
    num_prompt_tokens = min(share.start + share.num_tokens, request.num_prompt_tokens) - share.start
    is_first = request.first_scheduled_time == plan.time
    return ScheduledTokens(
        request_id=share.request_id,
        start=share.start,
        num_tokens=share.num_tokens,
        num_prompt_tokens=max(0, num_prompt_tokens),
        sampled=num_new_tokens > 0,
        num_new_tokens=num_new_tokens,
        num_blocks=share.num_blocks,
        num_drafts=len(share.draft_token_ids),
        num_accepted_drafts=result.num_accepted_drafts.get(share.request_id, 0),
        queued_since=request.arrival_time if is_first else None,
    )


def _moved(
    transfers: Sequence[BlockTransfer], changes: Sequence[TierChange] = ()
) -> list[MovedBlocks]:
    """Blocks that moved, without what tiers refused, and without states."""
    transfers = [move for move in transfers if not move.is_of_states]
    refused = {(change.tier, key) for change in changes for key in change.refused}
    if not refused:
        return [
            MovedBlocks(tier=move.tier, block_ids=move.block_ids, request_id=move.request_id)
            for move in transfers
        ]
    moved = []
    for move in transfers:
        pairs = zip(move.block_ids, move.keys, strict=True)
        ids = [block for block, key in pairs if (move.tier, key) not in refused]
        if ids:
            moved.append(MovedBlocks(tier=move.tier, block_ids=ids, request_id=move.request_id))
    return moved
