"""Continuous batching under one token budget.

There are no phases. Each step gives requests some of the tokens they lack: running ones first
(those that lack a single token before those that lack many, so that a long prompt cannot hold up
anyone's next token), then waiting ones in the policy's order, until the budget, the number of
requests or the blocks run out. One rule covers prefill, chunked prefill, decode, prefix hits and
recomputation after preemption, mixed in the same pass.

Iteration-level scheduling: Yu et al., Orca, OSDI 2022. Chunked prefill: Agrawal et al.,
Sarathi-Serve, OSDI 2024.
"""

from __future__ import annotations

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import TwostrokeError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request, RequestStatus
from twostroke.core.step import Decision, Reason, ScheduledRequest, StepPlan, StepResult
from twostroke.kv_cache.manager import KVCacheManager, Prefix
from twostroke.observability.events import SchedulerStats
from twostroke.scheduling.policies.policies import make_policy, pick_victim
from twostroke.scheduling.stopping import cut_at_stop

# Most tokens of a request in one step while its prompt's log-probabilities are to be computed: each
# takes logits over the whole vocabulary, and everybody in the step waits for them (256 rows of
# 150,000 are 150 MB).
SCORED_CHUNK = 256


class Scheduler:
    """Decides each step and keeps the requests' state. Same calls, same plans.

    Args:
        config: Budget, limits, policy.
        kv: The block tables; nobody else changes them.

    ``num_samples`` counts the requests that have a leader, ``num_lent`` the running ones that
    others look after.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.config = config
        self.kv = kv
        self.policy = make_policy(config)
        self.running: dict[str, Request] = {}
        self.requests: dict[str, Request] = {}
        self.num_preemptions = 0
        self.num_samples = self.num_lent = 0
        self._held: dict[str, list[Request]] = {}
        self._released: list[str] = []
        self._num_arrived = 0
        self._step = 0
        self._ranked: list[Request] | None = None
        self._ranked_left = False  # some of them run no more
        self._ranks_change = config.policy == "fair"
        self._chunk = min(
            config.max_prefill_chunk or config.max_num_batched_tokens, config.max_num_batched_tokens
        )

    # ---- arrivals and departures -----------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request that ``KVCacheManager.check_fits`` has passed and whose id is not in use.

        One that shares its leader's prompt is held until that prompt is computed.
        """
        assert request.request_id not in self.requests
        request.sequence_number = self._num_arrived
        self._num_arrived += 1
        self.requests[request.request_id] = request
        leader = request.leader
        self.num_samples += leader is not None
        if (
            leader is not None
            and self.requests.get(leader.request_id) is leader
            and not leader.prompt_computed
        ):
            self._held.setdefault(leader.request_id, []).append(request)
        else:
            self.policy.push(request)

    def finish(
        self,
        request_id: str,
        reason: FinishReason,
        now: float,
        *,
        error: TwostrokeError | None = None,
    ) -> Request | None:
        """End a request in whatever state it is and free what it holds. ``None`` if there is no
        such request.
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        runs = self.running.pop(request_id, None) is not None
        assert runs or request.status is RequestStatus.WAITING, "it is lent to somebody"
        del self.requests[request_id]
        self.num_samples -= request.leader is not None
        if runs:
            self._ranked_left = True
            self._released.append(request_id)
            self.policy.finished(request)
        else:
            self._leave_queue(request)
        self.kv.free(request, discard=error is not None)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_time = now
        self._unhold(request)
        return request

    def has_work(self) -> bool:
        return bool(self.requests)

    def ranked(self) -> list[Request]:
        """The running requests, the first one first. Not to be changed."""
        if self._ranked is None or self._ranks_change:
            self._ranked = sorted(self.running.values(), key=self.policy.rank)
        elif self._ranked_left:
            self._ranked = [
                request for request in self._ranked if request.status is RequestStatus.RUNNING
            ]
        self._ranked_left = False
        return self._ranked

    def lend(self, request: Request) -> None:
        """Leave a running request to others, who take one token of each step for it
        (``scheduling/steady.py``).
        """
        del self.running[request.request_id]
        self._ranked = None
        self.num_lent += 1

    def take_back(self, request: Request) -> None:
        self.running[request.request_id] = request
        self._ranked = None
        self.num_lent -= 1

    def skip_steps(self, steps: int) -> None:
        """Count steps that were taken without plans."""
        self._step += steps

    # ---- one step --------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """Plan the next step at time ``now`` (seconds on the caller's clock)."""
        plan = StepPlan(
            step=self._step, time=now, released=self._released, num_tokens=self.num_lent
        )
        self._released = []
        self._step += 1
        self._continue_running(plan)
        self._admit_waiting(plan)
        for leader_id, held in self._held.items():
            plan.decisions.append(
                Decision(held[0].request_id, Reason.SHARES_PROMPT, leader_id, len(held) - 1)
            )
        return plan

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Take in what the step produced: grow the requests, end those that are done."""
        outputs = []
        size, drawn, logprobs, scores = (
            self.kv.block_size,
            result.token_ids,
            result.logprobs,
            result.prompt_logprobs,
        )
        errors, held = result.errors, self._held
        for request_id, item in plan.scheduled.items():
            request = item.request
            if errors and (error := errors.get(request_id)):
                outputs.append(self.fail(request, error, now))
                continue
            num_tokens = item.num_tokens
            computed = request.num_computed_tokens = request.num_computed_tokens + num_tokens
            tokens = drawn.get(request_id) or []
            unseen = (
                request.take_scores(scores[request_id], item.start)
                if scores and request_id in scores
                else None
            )
            if tokens or unseen is not None:
                output = self._extend(request, tokens, now)
                if logprobs:
                    output.logprobs = logprobs.get(request_id)
                output.prompt_logprobs = unseen
                outputs.append(output)
            # It filled a block if its last one holds no more than what is new.
            if computed % size < num_tokens and request.status is RequestStatus.RUNNING:
                self.kv.commit(request)
            if held and request.prompt_computed:
                self._unhold(request)
        return outputs

    def fail(self, request: Request, error: TwostrokeError, now: float) -> RequestOutput:
        """End one request with an error; nobody else notices."""
        self.finish(request.request_id, FinishReason.ERROR, now, error=error)
        output = _output(request, [])
        output.finish_reason, output.error = FinishReason.ERROR, error
        return output

    def stats(self) -> SchedulerStats:
        assert not self.num_lent, "what others look after is not known here"
        pool, size = self.kv.pool, self.kv.block_size
        allocated = (pool.num_blocks - pool.num_free) * size
        unused = self.kv.num_unused_slots(self.running.values())
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.requests) - len(self.running),
            total_blocks=pool.num_blocks,
            free_blocks=pool.num_free,
            cached_blocks=self.kv.num_cached,
            allocated_slots=allocated,
            used_slots=max(0, allocated - unused),
            prefix_queries=self.kv.prefix_queries,
            prefix_hits=self.kv.prefix_hits,
            num_preemptions=self.num_preemptions,
        )

    # ---- running requests ------------------------------------------------------------------------

    def _continue_running(self, plan: StepPlan) -> None:
        """Those that lack one token first. Most need nothing for it: their last block has room, and
        is theirs alone.
        """
        self._let_in_newcomers(plan)
        if not self.running:
            return
        order = self.ranked()
        hurrying = self.policy.hurrying(order)
        for request in hurrying:
            self._continue(request, plan)
        if hurrying:  # Some of the others may have been preempted for them.
            order = [request for request in order if request.request_id in self.running]
        long, scheduled = [], plan.scheduled
        # Behind those, shares are the policy's to decide.
        room = 0 if hurrying or plan.scheduled else self.config.max_num_batched_tokens
        # Nothing below takes away the room of a request that it does not preempt.
        for request, blocks in zip(order, self.kv.tables_with_room(order)):
            start = request.num_computed_tokens
            if len(request.token_ids) - start > 1:
                long.append(request)
            elif start < request.num_prompt_tokens or plan.num_tokens >= room:
                self._continue(request, plan)
            elif blocks is not None:
                scheduled[request.request_id] = ScheduledRequest(
                    request, start, 1, blocks, len(blocks)
                )
                plan.num_tokens += 1
            elif (blocks := self.kv.grow(request)) is not None:
                scheduled[request.request_id] = ScheduledRequest(
                    request, start, 1, blocks, len(blocks) - 1
                )
                plan.num_tokens += 1
            else:
                self._continue(request, plan)
        for request in long:
            self._continue(request, plan)

    def _continue(self, request: Request, plan: StepPlan) -> None:
        if request.request_id not in self.running or request.request_id in plan.scheduled:
            return  # preempted by one before it, or in already
        num_tokens = self._share(request.num_missing_tokens, request, plan)
        if num_tokens > 0 and self._make_room(request, num_tokens, plan):
            self._take(request, num_tokens, plan)

    def _share(self, missing: int, request: Request, plan: StepPlan) -> int:
        """How many of the missing tokens fit into chunk and budget; says so when not all do."""
        left = self._left(request, plan)
        chunk = self._chunk if request.reads_prefix_cache else min(self._chunk, SCORED_CHUNK)
        num_tokens = min(missing, chunk, left)
        if num_tokens < missing:
            reason = self._spent(left, plan) if num_tokens == left else Reason.PREFILL_CHUNK
            plan.decisions.append(Decision(request.request_id, reason))
        return num_tokens

    def _left(self, request: Request, plan: StepPlan) -> int:
        """Tokens that the step still has for a request."""
        left = (
            self.policy.budget(request, plan, self.config.max_num_batched_tokens) - plan.num_tokens
        )
        return left if left > 0 else 0

    def _spent(self, left: int, plan: StepPlan) -> Reason:
        """Why a request gets no more than what is left: that is all of the budget, or the policy
        keeps some from it.
        """
        kept = plan.num_tokens + left < self.config.max_num_batched_tokens
        return Reason.POLICY if kept else Reason.TOKEN_BUDGET

    def _make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Preempt the least important requests until the blocks suffice; ``False`` if that hits the
        request itself.
        """
        while self.kv.num_blocks_short(request, request.num_computed_tokens + num_tokens) > 0:
            victim = pick_victim(self.policy, self.running.values())
            self._preempt(victim, plan, by=request)
            if victim is request:
                return False
        return True

    def _take(self, request: Request, num_tokens: int, plan: StepPlan) -> None:
        allocation = self.kv.allocate(request, request.num_computed_tokens + num_tokens)
        plan.block_copies.extend(allocation.block_copies)
        table = self.kv.block_ids(request)
        self.policy.charge(request, prompt_tokens=request.reach(num_tokens))
        plan.add(
            ScheduledRequest(
                request, request.num_computed_tokens, num_tokens, table, allocation.changed_from
            )
        )

    def _preempt(self, victim: Request, plan: StepPlan, *, by: Request) -> None:
        """Take a request's blocks away; it waits again and will recompute what the prefix cache has
        lost by then.
        """
        plan.remove(victim.request_id)
        self.kv.free(victim)
        del self.running[victim.request_id]
        self._ranked = None
        victim.status = RequestStatus.WAITING
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.policy.push(victim)
        plan.released.append(victim.request_id)
        cause = (
            None if by is victim else by.request_id
        )  # the least important request yields to all others
        plan.decisions.append(Decision(victim.request_id, Reason.PREEMPTED, cause))

    # ---- waiting requests ------------------------------------------------------------------------

    def _admit_waiting(self, plan: StepPlan) -> None:
        if not len(self.policy):
            return
        promised = self.kv.num_blocks_promised(self.running.values())
        while (request := self.policy.peek()) is not None:
            prefix = self._entry(request, promised, plan)
            if isinstance(prefix, Reason):
                plan.decisions.append(
                    Decision(request.request_id, prefix, behind=len(self.policy) - 1)
                )
                return
            self._admit(self.policy.pop(), prefix, plan)
            if len(self.policy):
                promised += self.kv.num_blocks_missing(request)
        if len(self.policy):
            plan.decisions.append(Decision("", Reason.BATCH_RUNNING, behind=len(self.policy)))

    def _entry(self, request: Request, promised: int, plan: StepPlan) -> Prefix | Reason:
        """The cached prefix with which a waiting request enters this step, or what keeps it out.

        Its whole prompt must fit beside what is promised to the running ones: admitting it for its
        first chunk alone would preempt somebody a few steps later. For the same reason nobody
        enters a step that preempts.
        """
        if not self._left(request, plan):
            return self._spent(0, plan)
        if self._is_full():
            return Reason.MAX_NUM_SEQS
        # Whoever enters needs a new block at least. Asked before the lookup, since who is kept out
        # asks at every step.
        if promised >= self.kv.pool.num_free:
            return Reason.NO_FREE_BLOCK
        if plan.decisions and any(
            decision.reason is Reason.PREEMPTED for decision in plan.decisions
        ):
            return Reason.POLICY
        prefix = self.kv.find_prefix(request)
        return prefix if self.kv.has_room(request, prefix, promised) else Reason.NO_FREE_BLOCK

    def _let_in_newcomers(self, plan: StepPlan) -> None:
        """Those that the policy puts before the running ones, preempting whom it names until there
        is room.
        """
        if self.policy.newcomer() is None:
            return
        promised = self.kv.num_blocks_promised(self.running.values())
        while (request := self.policy.newcomer()) is not None and self._left(request, plan):
            prefix = self.kv.find_prefix(request)
            while self._is_full() or not self.kv.has_room(request, prefix, promised):
                victim = self.policy.displace(request)
                if victim is None:
                    return
                promised -= self.kv.num_blocks_missing(victim)
                self._preempt(victim, plan, by=request)
            self._admit(self.policy.pop(), prefix, plan)
            promised += self.kv.num_blocks_missing(request)

    def _is_full(self) -> bool:
        return len(self.running) + self.num_lent >= self.config.max_num_seqs

    def _admit(self, request: Request, prefix: Prefix, plan: StepPlan) -> None:
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = plan.time
        self.running[request.request_id] = request
        ranked = self._ranked
        if ranked and self.policy.rank(ranked[-1]) < self.policy.rank(request):
            ranked.append(request)
        else:
            self._ranked = None
        self.kv.admit(request, prefix)
        if request.num_preemptions == 0:
            request.num_cached_tokens = prefix.num_tokens
        self._take(request, self._share(request.num_missing_tokens, request, plan), plan)

    def _unhold(self, leader: Request) -> None:
        for request in self._held.pop(leader.request_id, ()):
            self.policy.push(request)

    def _leave_queue(self, request: Request) -> None:
        held = self._held.get(request.leader.request_id, []) if request.leader else []
        if request in held and request.leader:
            held.remove(request)
            if not held:
                del self._held[request.leader.request_id]
        else:
            self.policy.remove(request)

    # ---- results ---------------------------------------------------------------------------------

    def _extend(self, request: Request, tokens: list[int], now: float) -> RequestOutput:
        """Append sampled tokens up to the first one that ends the request."""
        request.token_ids += tokens
        stop = None
        ends = request.stop_token_ids
        if len(request.token_ids) >= request.max_total_tokens or (
            ends and not ends.isdisjoint(tokens)
        ):
            tokens, stop = cut_at_stop(request, tokens)
        output = _output(request, tokens)
        if request.first_token_time is None and tokens:
            request.first_token_time = now
        if stop:
            output.finish_reason, output.stop_reason = stop.reason, stop.token_id
            self.kv.commit(request)
            self.finish(request.request_id, stop.reason, now)
        if self._ranks_change:
            self.policy.charge(request, output_tokens=len(tokens))
        return output


def _output(request: Request, tokens: list[int]) -> RequestOutput:
    prompt, reached = request.num_prompt_tokens, request.num_reached_tokens
    used = (
        reached if reached < prompt else prompt
    )  # ``num_used_prompt_tokens``, without a call for every token
    return RequestOutput(
        request.parent_id,
        request.index,
        tokens,
        prompt,
        request.num_cached_tokens,
        num_used_prompt_tokens=used,
    )
