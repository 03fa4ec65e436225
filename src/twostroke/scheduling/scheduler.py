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

from collections.abc import Sequence

from twostroke.core.config import SchedulerConfig
from twostroke.core.kv_tier_config import PreemptionName
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason, Request, RequestStatus
from twostroke.core.step import (
    Decision,
    NewRequest,
    Reason,
    ScheduledRequest,
    StepPlan,
    StepResult,
)
from twostroke.kv_cache.block_table import Prefix
from twostroke.kv_cache.connector import TierInfo
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.scheduling.policies.base import SchedulingPolicy
from twostroke.scheduling.preemption import choose_preemption
from twostroke.scheduling.progress import keep_drafts, take_result
from twostroke.scheduling.speculation import DraftDepth, FixedDepth, room_for_drafts
from twostroke.scheduling.step_budget import FixedBudget, StepBudget
from twostroke.scheduling.tiered_blocks import TieredBlocks
from twostroke.scheduling.waiting import WaitingRequests

# Most tokens of a request in one step while its prompt's log-probabilities are computed: each takes
# logits over the whole vocabulary, and the whole step waits (256 rows of 150,000 are 150 MB).
SCORED_CHUNK = 256


class Scheduler:
    """Decides each step and keeps the requests' state. Same calls, same plans.

    Args:
        config: Budget and limits.
        kv: The block tables; nothing else changes them.
        policy: Order of the waiting queue, and which running request yields.
        preemption: How a running request is made to wait.
        depth: How many tokens are guessed ahead; by default none.
        budget: Most tokens of each step; by default always the configured ones.
        tiers: Where blocks may go that the KV cache has no room for, the fastest first.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        policy: SchedulingPolicy,
        preemption: PreemptionName = "recompute",
        depth: DraftDepth | None = None,
        budget: StepBudget | None = None,
        tiers: Sequence[TierInfo] = (),
    ) -> None:
        # What starts an engine has chosen the device's defaults; those left are the CPU's.
        self.config = config = config.for_device(gpu=False)
        self.kv = kv
        self.policy = policy
        self.requests: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.num_preemptions = 0
        self._waiting = WaitingRequests(policy)
        swaps = preemption == "swap"
        self.tiers = TieredBlocks(kv, tiers, self.requests, always_load_swapped=swaps)
        self._preemption = choose_preemption(preemption, self.tiers)
        self.depth = depth or FixedDepth()
        self._released: list[str] = []
        self._num_arrived = 0
        self._step = 0
        self._order: list[Request] | None = None  # the running requests by rank; None: sort anew
        most = config.max_num_batched_tokens
        self.budget = budget or FixedBudget(most)
        self._chunk = min(config.max_prefill_chunk or most, most)

    # ---- arrivals and departures -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request that ``check_fits`` has passed and whose id is not in use."""
        assert request.request_id not in self.requests
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self._waiting.add(request, self.requests)

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
        if self.running.pop(request_id, None) is not None:
            self._order = None
            self._released.append(request_id)
            self.policy.finished(request)
        else:
            self._waiting.remove(request)
        self.kv.free(request, discard=discard)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_time = now
        self._waiting.leader_is_ready(request)
        return request

    def set_aside(self, request_id: str, status: RequestStatus) -> None:
        """Let a waiting request wait outside the queue: ``LOADING`` or ``HELD`` for a transfer.

        It holds no blocks meanwhile, and ``resume`` queues it again.
        """
        self._waiting.set_aside(self.requests[request_id], status)

    @property
    def num_set_aside(self) -> int:
        """Requests that wait outside the queue."""
        return self._waiting.num_aside

    def resume(self, request_id: str) -> None:
        """Put a request that was set aside back into the queue; harmless if it has ended."""
        if request := self.requests.get(request_id):
            self._waiting.resume(request, self.requests)

    def has_work(self) -> bool:
        """Whether a step is needed: for requests, or for blocks on their way to or from a tier."""
        return bool(self.requests) or self.tiers.has_work()

    # ---- one step --------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step at time ``now`` (seconds on the caller's clock)."""
        plan = StepPlan(self._step, now, released=self._released, token_budget=self.budget.tokens)
        self._step += 1
        self._released = []
        self._admit_boosted(plan)
        self._continue_running(plan)
        self._admit_waiting(plan)
        self.tiers.complete(plan)
        plan.decisions += self._waiting.decisions()
        return plan

    def requests_in(self, plan: StepPlan) -> list[Request]:
        """The requests that a plan schedules, in its order; before its result is taken in."""
        return [self.requests[request_id] for request_id in plan.scheduled]

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in what the step produced: grow the requests, end those that are done."""
        outputs, no_longer_loading = [], self.tiers.update(plan, result)
        for request_id, share in plan.scheduled.items():
            request = self.requests.get(request_id)
            if request is None:
                continue  # aborted while the step ran
            if error := result.errors.get(request_id):
                self.finish(request_id, FinishReason.ERROR, now, discard=True)
                outputs.append(make_output(request, [], FinishReason.ERROR, error))
                continue
            output = take_result(request, share, result, now)
            self.kv.commit(request)
            if share.start < request.num_prompt_tokens and request.prompt_computed:
                self._waiting.leader_is_ready(request)
            if output is not None:
                outputs.append(output)
                if output.finish_reason is not None:
                    self.finish(request_id, output.finish_reason, now)
                self.policy.charge(request, output_tokens=len(output.token_ids))
        for request_id, drafts in result.draft_token_ids.items():
            if request_id in self.running:
                keep_drafts(self.running[request_id], drafts)
        self.depth.observe(plan, result)
        self.budget.observe(plan, result, self.running.values(), now)
        for request_id in no_longer_loading:
            self.resume(request_id)
        return outputs

    def skip(self, steps: int) -> None:
        """Count steps that a caller has taken by itself."""
        self._step += steps
        self._released = []

    # ---- running requests ------------------------------------------------------------------------

    def _continue_running(self, plan: StepPlan) -> None:
        order = self.running_in_order()
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
        num_tokens = self._share_size(request, left)
        if num_tokens < num_missing:
            is_chunk = 0 < num_tokens < left
            reason = Reason.PREFILL_CHUNK if is_chunk else self._why_no_tokens(left, plan)
            plan.decisions.append(Decision(request.request_id, reason))
        if num_tokens == 0:
            return
        depth = self._draft_depth(request, num_tokens, plan)
        ahead = depth if self.depth.needs_slots else 0
        while (change := self.kv.allocate_slots(request, num_tokens + ahead)) is None:
            if ahead:  # drafts are worth no preemption, neither those to come nor these
                depth = ahead = 0
                continue
            if num_tokens > num_missing:
                num_tokens = num_missing
                continue
            victim = max(self.running.values(), key=self.policy.rank)
            self._preempt(victim, plan, by=request)
            if victim is request:
                return
        if not request.prompt_computed:
            new_tokens = request.count_new_prompt_tokens(num_tokens)
            self.policy.charge(request, prompt_tokens=new_tokens)
        if change.block_copies:
            plan.block_copies += change.block_copies
        if drafts:
            request.draft_token_ids = []
            drafts = drafts[: max(0, num_tokens - num_missing)]
        start, num_sent = request.num_computed_tokens, request.num_sent_tokens
        request.num_sent_tokens = request.num_tokens
        plan.add(
            ScheduledRequest(
                request.request_id,
                start,
                num_tokens,
                num_tokens >= num_missing and request.spec.vector is None,
                self.kv.blocks_for(start + num_tokens),
                change.first_new_block,
                change.new_block_ids,
                request.token_ids[num_sent:],
                drafts,
                depth,
            )
        )

    def _share_size(self, request: Request, left: int) -> int:
        """How many of a step's ``left`` tokens a running request gets, drafts included."""
        wanted = request.num_missing_tokens + len(request.draft_token_ids)
        if request.spec.vector is not None and request.spec.vector.whole_prompts:
            return wanted if wanted <= left else 0
        scored = request.spec.vector is None and not request.reads_prefix_cache
        return min(wanted, left, self._chunk, SCORED_CHUNK if scored else self._chunk)

    def _draft_depth(self, request: Request, num_tokens: int, plan: StepPlan) -> int:
        """How many drafts a request may get after it has computed ``num_tokens`` more."""
        if num_tokens < request.num_missing_tokens:
            return 0
        depth = self.depth.choose(request, plan.depth_changes)
        return min(depth, room_for_drafts(request, num_tokens)) if depth else 0

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

    def _preempt(self, victim: Request, plan: StepPlan, *, by: Request) -> None:
        """Make a running request wait again, and take it out of the plan."""
        plan.remove(victim.request_id, self.kv.block_ids(victim))
        self._preemption.preempt(victim, self.kv, plan)
        del self.running[victim.request_id]
        self._order = None
        victim.status = RequestStatus.WAITING
        victim.draft_token_ids = []
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.policy.push(victim)
        plan.released.append(victim.request_id)
        cause = None if by is victim else by.request_id  # the largest rank yields to all others
        plan.decisions.append(Decision(victim.request_id, Reason.PREEMPTED, cause))

    # ---- waiting requests ------------------------------------------------------------------------

    def _admit_waiting(self, plan: StepPlan) -> None:
        if not len(self.policy):
            return
        promised = sum(map(self.kv.num_blocks_missing, self.running.values()))
        while (request := self.policy.peek()) is not None:
            prefix = self._find_room(request, promised, plan)
            if isinstance(prefix, Reason):
                behind = len(self.policy) - 1
                plan.decisions.append(Decision(request.request_id, prefix, behind=behind))
                return
            if self._load(request, prefix, plan):
                continue
            self._admit(self.policy.pop(), prefix, plan)
            promised += self.kv.num_blocks_missing(request)
        if len(self.policy):
            plan.decisions.append(Decision("", Reason.BATCH_RUNNING, behind=len(self.policy)))

    def _find_room(self, request: Request, promised: int, plan: StepPlan) -> Prefix | Reason:
        """The cached prefix with which a waiting request enters this step, or what keeps it out.

        Its whole prompt must fit beside the ``promised`` blocks that running requests still need:
        admitting it for its first chunk alone would preempt a request a few steps later. For the
        same reason no request enters a step that preempts.
        """
        if not self._tokens_left(request, plan):
            return self._why_no_tokens(0, plan)
        if len(self.running) >= self.config.max_num_seqs:
            return Reason.MAX_NUM_SEQS
        # Every request needs a new block at least. Asked before the lookup, which costs more.
        if promised >= self.kv.pool.num_free:
            return Reason.NO_FREE_BLOCK
        if any(decision.reason is Reason.PREEMPTED for decision in plan.decisions):
            return Reason.POLICY
        prefix = self.kv.find_prefix(request)
        return prefix if self.kv.has_room(request, prefix, promised) else Reason.NO_FREE_BLOCK

    def _admit_boosted(self, plan: StepPlan) -> None:
        """Admit what the policy puts before running requests, and preempt those that it names."""
        boost = self.policy.boost
        while (request := self.policy.peek()) is not None and boost.deserves(request):
            if not self._tokens_left(request, plan):
                return
            prefix = self.kv.find_prefix(request)
            if self._has_room_for(request, prefix) and self._load(request, prefix, plan):
                continue
            while not self._has_room_for(request, prefix):
                victim = boost.pick_displaced(request)
                if victim is None:
                    return
                self._preempt(victim, plan, by=request)
            self._admit(self.policy.pop(), prefix, plan)

    def _has_room_for(self, request: Request, prefix: Prefix) -> bool:
        if len(self.running) >= self.config.max_num_seqs:
            return False
        promised = sum(map(self.kv.num_blocks_missing, self.running.values()))
        return self.kv.has_room(request, prefix, promised)

    def _load(self, request: Request, prefix: Prefix, plan: StepPlan) -> bool:
        """Load more of its prefix, if a tier has more; then it waits outside the queue."""
        if not self.tiers.begin_load(request, prefix, plan):
            return False
        self._waiting.set_aside(request, RequestStatus.LOADING)
        return True

    def _admit(self, request: Request, prefix: Prefix, plan: StepPlan) -> None:
        """Let a waiting request run from this step on. There is room for all its known tokens."""
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = plan.time
        self.running[request.request_id] = request
        self._order = None
        self.kv.admit(request, prefix)
        if request.num_preemptions == 0:
            request.num_cached_tokens = prefix.num_tokens
        plan.new_requests[request.request_id] = NewRequest.of(request)
        request.num_sent_tokens = request.num_tokens
        self._schedule(request, plan)

    def running_in_order(self) -> list[Request]:
        """The running requests by the policy's rank. Read only, valid until the next step."""
        if self._order is None or self.policy.ranks_change:
            self._order = sorted(self.running.values(), key=self.policy.rank)
        return self._order
