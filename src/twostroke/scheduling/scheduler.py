"""Continuous batching under one token budget.

There are no phases. Each step gives requests some of the tokens they lack: running ones first
(those that lack a single token before those that lack many, so that a long prompt cannot hold up
the next token of another request), then waiting ones in the policy's order, until the budget, the
number of requests or the blocks run out. One rule covers prefill, chunked prefill, decode,
speculation, prefix hits and recomputation after preemption, mixed in the same pass.

Iteration-level scheduling: Yu et al., Orca, OSDI 2022. Chunked prefill: Agrawal et al.,
Sarathi-Serve, OSDI 2024.
"""

from __future__ import annotations

from twostroke.core.config import SchedulerConfig
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason, Request, RequestStatus
from twostroke.core.sampling_params import HostWait
from twostroke.core.step import Decision, NewRequest, Reason, ScheduledRequest, StepPlan, StepResult
from twostroke.kv_cache.block_table import NO_PREFIX, Prefix
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling import parts, plain_parts
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.progress import keep_drafts, room_for_drafts, share_size, take_result
from twostroke.scheduling.running_batch import RunningBatch
from twostroke.scheduling.waiting import Entry, WaitingRequests


class Scheduler:
    """Decides each step and keeps the requests' state. Same calls, same plans.

    Args:
        config: Budget and limits.
        kv: The block tables; nothing else changes them.
        policy: Order of the waiting queue, and which running request yields.
        tiers: Where blocks may go that the KV cache has no room for; by default nowhere.
        preemption: How a running request is made to wait; by default its blocks are dropped.
        depth: How many tokens are guessed ahead; by default none.
        budget: Most tokens of each step; by default always the configured ones.

    Attributes:
        num_steps: Planned so far; the number of the next one.
        released: Ids of requests that have lost their blocks since the last plan.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        *,
        tiers: parts.Tiers | None = None,
        preemption: parts.Preemption | None = None,
        depth: parts.DraftDepth | None = None,
        budget: parts.StepBudget | None = None,
    ) -> None:
        self.config = config
        self.kv = kv
        self.policy = policy
        self.tiers = tiers or plain_parts.WithoutTiers()
        self.depth = depth or plain_parts.NoDrafts()
        most = config.max_num_batched_tokens
        self.budget = budget or plain_parts.FixedBudget(most)
        self._assumes = False  # what the last plan computes
        self.num_steps = 0
        self.released: list[str] = []
        self.requests: dict[str, Request] = {}
        self.batch = RunningBatch(kv, policy, preemption or plain_parts.Recompute())
        self.running = self.batch.requests
        self.waiting = WaitingRequests(policy, self.requests)
        self._chunk = min(config.max_prefill_chunk or most, most)
        self._num_arrived = 0

    # ---- arrivals and departures -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request that ``check_fits`` has passed and whose id is not in use."""
        assert request.request_id not in self.requests
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def finish(
        self, request_id: str, reason: FinishReason, now: float, *, discard: bool = False
    ) -> Request | None:
        """End a request in whatever state it is. ``None`` if there is no such request.

        Args:
            discard: Its keys and values may be wrong: no later request may find them.
        """
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        if self.batch.remove(request_id):
            self.released.append(request_id)
            self.policy.finished(request)
        else:
            self.waiting.remove(request)
        self.kv.free(request, discard=discard)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_time = now
        self.waiting.leader_is_ready(request)
        return request

    def has_work(self) -> bool:
        """Whether a step is needed: for requests, or for blocks on their way to or from a tier."""
        return bool(self.requests) or self.tiers.has_work()

    # ---- one step --------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step at time ``now`` (seconds on the caller's clock)."""
        plan = StepPlan(
            self.num_steps, now, released=self.released, token_budget=self.budget.tokens
        )
        plan.is_ahead, self._assumes = self._assumes, False
        self.num_steps += 1
        self.released = []
        self._admit_waiting(plan, boosted=True)
        self._continue_running(plan)
        self._admit_waiting(plan, boosted=False)
        self.tiers.complete(plan, self.requests)
        plan.decisions += self.waiting.decisions()
        return plan

    def assume(self, plan: StepPlan) -> bool:
        """Take for granted what a plan computes, so that the next is made before its result is in.

        Returns whether a request goes on: then the next is to be made, before ``update``.
        """
        for request_id, share in plan.scheduled.items():
            if (request := self.running.get(request_id)) is not None:
                request.assume(share.num_tokens, draws=share.samples)
        self._assumes = any(request.num_missing_tokens for request in self.running.values())
        return self._assumes

    def requests_in(self, plan: StepPlan) -> list[Request]:
        """The requests that a plan schedules, in its order; before its result is taken in."""
        return [self.requests[request_id] for request_id in plan.scheduled]

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in what the step produced: grow the requests, end those that are done."""
        outputs, no_longer_loading = [], self.tiers.update(plan, result, self.requests)
        for request_id, share in plan.scheduled.items():
            request = self.requests.get(request_id)
            if request is None:
                continue  # it ended while the step ran
            if error := result.errors.get(request_id):
                self.finish(request_id, FinishReason.ERROR, now, discard=True)
                outputs.append(make_output(request, [], FinishReason.ERROR, error))
                continue
            output = take_result(request, share, result, now)
            self.kv.commit(request, share.start)
            if share.start < request.num_prompt_tokens and request.prompt_computed:
                self.waiting.leader_is_ready(request)
            if output is not None:
                outputs.append(output)
                self.policy.charge(request, output_tokens=len(output.token_ids))
                if output.finish_reason is not None:
                    self.finish(request_id, output.finish_reason, now)
        for request_id, drafts in result.draft_token_ids.items():
            if request_id in self.running:
                keep_drafts(self.running[request_id], drafts)
        self.depth.observe(plan, result)
        self.budget.observe(plan, result, self.running.values(), now)
        for request_id in no_longer_loading:
            self.waiting.resume(request_id)
        return outputs

    # ---- running requests ------------------------------------------------------------------------

    def _continue_running(self, plan: StepPlan) -> None:
        order = self.batch.in_order()
        decoding = [request for request in order if request.num_missing_tokens == 1]
        prefilling = [request for request in order if request.num_missing_tokens > 1]
        for request in (*self.policy.boost.boosted(order), *decoding, *prefilling):
            # It may have been preempted by one before it, or be in the plan already.
            if request.request_id in self.running and request.request_id not in plan.scheduled:
                self._schedule(request, plan)

    def _schedule(self, request: Request, plan: StepPlan) -> None:
        """Give a running request as many of the tokens that it lacks as chunk and budget allow."""
        num_missing, drafts = request.num_missing_tokens, request.draft_token_ids
        left = self._tokens_left(request, plan)
        num_tokens = share_size(request, left, self._chunk)
        if num_tokens < num_missing:
            is_chunk = 0 < num_tokens < left
            reason = Reason.PREFILL_CHUNK if is_chunk else self._why_no_tokens(left, plan)
            plan.decisions.append(Decision(request.request_id, reason))
        if num_tokens == 0:
            return
        depth = ahead = 0
        if num_tokens >= num_missing:
            room = room_for_drafts(request, num_tokens)
            depth = min(self.depth.choose(request, plan.depth_changes), room)
            ahead = depth if self.depth.needs_slots else 0
        slots = self.batch.allocate(request, num_tokens, depth, ahead, plan)
        if slots is None:
            return
        if not request.prompt_computed:
            new_tokens = request.count_new_prompt_tokens(slots.num_tokens)
            self.policy.charge(request, prompt_tokens=new_tokens)
        if slots.change.block_copies:
            plan.block_copies += slots.change.block_copies
        if drafts:
            request.draft_token_ids = []
            drafts = drafts[: max(0, slots.num_tokens - num_missing)]
        start, num_sent = request.num_computed_tokens, request.num_sent_tokens
        request.num_sent_tokens = request.num_tokens
        plan.add(
            ScheduledRequest(
                request_id=request.request_id,
                start=start,
                num_tokens=slots.num_tokens,
                samples=slots.num_tokens >= num_missing and request.spec.vector is None,
                num_blocks=self.kv.blocks_for(start + slots.num_tokens),
                first_new_block=slots.change.first_new_block,
                new_block_ids=slots.change.new_block_ids,
                new_token_ids=request.token_ids[num_sent:],
                draft_token_ids=drafts,
                max_new_drafts=slots.depth,
                states=self.kv.states.plan(request, slots.num_tokens, len(drafts)),
            )
        )

    def _tokens_left(self, request: Request, plan: StepPlan) -> int:
        """Tokens that the step still has for a request."""
        left = self.policy.boost.token_limit(request, plan, plan.token_budget) - plan.num_tokens
        return left if left > 0 else 0

    def _why_no_tokens(self, left: int, plan: StepPlan) -> Reason:
        """The budget is spent, or the policy keeps the rest of it for boosted requests."""
        if plan.num_tokens + left < plan.token_budget:
            return Reason.POLICY
        is_whole = plan.token_budget >= self.config.max_num_batched_tokens
        return Reason.TOKEN_BUDGET if is_whole else Reason.TPOT_TARGET

    # ---- waiting requests ------------------------------------------------------------------------

    def _admit_waiting(self, plan: StepPlan, *, boosted: bool) -> None:
        """Admit waiting requests in the policy's order, until there is no room for the next.

        ``boosted``: only those that the policy puts before running ones, which may have to yield.
        """
        request = self._next_waiting(boosted)
        promised = self.batch.num_promised() if request is not None else 0
        while request is not None:
            entry, displaces = self.find_entry(request, promised, plan, boosted), False
            if boosted:
                entry, displaces = self._make_room(request, entry, plan)
                promised = self.batch.num_promised()
            if entry.obstacle is not None:
                if not boosted:
                    plan.decisions.append(self.waiting.held_by(entry.obstacle))
                return
            if not displaces and self.tiers.begin_load(request, entry.prefix, plan):
                self.waiting.set_aside(request)
            else:
                self._admit(self.policy.pop(), entry.prefix, plan)
                promised += self.kv.num_blocks_missing(request)
            request = self._next_waiting(boosted)
        if not boosted and len(self.policy):
            plan.decisions.append(self.waiting.held_by(Reason.BATCH_RUNNING))

    def _next_waiting(self, boosted: bool) -> Request | None:
        request = self.policy.peek()
        if request is None or (boosted and not self.policy.boost.deserves(request)):
            return None
        return request

    def _make_room(self, request: Request, entry: Entry, plan: StepPlan) -> tuple[Entry, bool]:
        """How a boosted request enters once all have been preempted that yield to it, if any."""
        full, displaces = (Reason.MAX_NUM_SEQS, Reason.NO_FREE_BLOCK), False
        if plan.is_ahead and entry.obstacle in full:  # none yields while a step runs
            plan.host_wait = HostWait.BLOCKS
            return entry, False
        while entry.obstacle in full and (victim := self.policy.boost.pick_displaced(request)):
            self.batch.preempt(victim, plan, by=request)
            entry = self.find_entry(request, self.batch.num_promised(), plan, boosted=True)
            displaces = True
        return entry, displaces

    def find_entry(self, request: Request, promised: int, plan: StepPlan, boosted: bool) -> Entry:
        """How a waiting request would enter the step that ``plan`` is for. Changes nothing.

        Its whole prompt must fit beside the ``promised`` blocks that running requests still need:
        admitting it for its first chunk alone would preempt a request a few steps later. For the
        same reason only boosted requests enter a step that preempts.
        """
        if not self._tokens_left(request, plan):
            return Entry(NO_PREFIX, self._why_no_tokens(0, plan))
        if len(self.running) >= self.config.max_num_seqs:
            return Entry(NO_PREFIX, Reason.MAX_NUM_SEQS)
        # Every request needs a new block at least. Asked before the lookup, which costs more.
        if promised >= self.kv.pool.num_free:
            return Entry(NO_PREFIX, Reason.NO_FREE_BLOCK)
        if self.batch.last_preempting == plan.step and not boosted:
            return Entry(NO_PREFIX, Reason.POLICY)
        prefix = self.kv.find_prefix(request)
        has_room = self.kv.has_room(request, prefix, promised)
        return Entry(prefix, None if has_room else Reason.NO_FREE_BLOCK)

    def _admit(self, request: Request, prefix: Prefix, plan: StepPlan) -> None:
        """Let a waiting request run from this step on. There is room for all its known tokens."""
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = plan.time
        self.batch.add(request)
        self.kv.admit(request, prefix)
        if request.num_preemptions == 0:
            request.num_cached_tokens = prefix.num_tokens
        plan.new_requests[request.request_id] = NewRequest.of(request)
        request.num_sent_tokens = request.num_tokens
        self._schedule(request, plan)
