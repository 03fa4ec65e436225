"""An executor that computes no tokens, only how long the hardware at hand would take for them."""

from __future__ import annotations

import math
from dataclasses import replace

from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.immediate_executor import ImmediateExecutor
from twostroke.simulator.cost.estimate import CostModel
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.fleet.tiers import SimulatedTiers
from twostroke.simulator.jumping.decode_curve import Bound, DecodeCurve, RunTimes
from twostroke.spec_decode.synthetic import SyntheticAcceptance
from twostroke.timing.step_shape import StepShape

# Every draw gives this token. Lengths come from the workload: requests ignore the end token.
TOKEN = 0


class SimulatedExecutor(ImmediateExecutor):
    """Implements ``engine.executor.Executor``; ``launch`` advances the clock by the step's time.

    Args:
        info: The pretended model and its KV cache.
        cost: What a step takes.
        clock: The engine's clock.
        bound: Which end of the estimate's interval is taken for the truth.
        acceptance: How drafts fare, where the scheduler lets some be made.
        settling: How many steps after one that prefills the cost model tells apart from later ones.
        waking: Whether it tells apart steps before which the engine was idle.
        tiers: Where blocks go that the KV cache has no room for.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        cost: CostModel,
        clock: VirtualClock,
        *,
        bound: Bound = "seconds",
        acceptance: SyntheticAcceptance | None = None,
        settling: int = 0,
        waking: bool = False,
        tiers: SimulatedTiers | None = None,
    ) -> None:
        super().__init__()
        self.info = info if tiers is None else replace(info, tiers=tiers.infos)
        self.tiers = tiers
        self.clock = clock
        self.acceptance = acceptance
        self.last_shape = StepShape(0, 0, (), 0)
        self.last_binding = ""
        self.waits = False  # for other replicas, as the last step had nothing to compute
        self.last_bindings: list[tuple[str, int]] = []
        self._seeds: dict[str, int] = {}
        self._drafted: dict[str, int] = {}  # how many tokens of each request the drafter computed
        self._cost = cost
        self._bound = bound
        self._curve = DecodeCurve(cost, bound)
        self._one = [TOKEN]
        self._settling = settling
        self._unsettled = 0  # of the next steps
        self._waking = waking
        self._ended = 0.0  # the last step

    def execute(self, plan: StepPlan) -> StepResult:
        """Draw ``TOKEN`` for each request that samples, and say how long the step would take.

        Drafts are ``TOKEN`` too; how many of them are accepted is drawn.
        """
        self._update_requests(plan)
        if self.tiers is not None:
            self.waits = False
            self.clock.advance(self.tiers.begin(plan, self.clock.now))
            if not plan.scheduled:
                return self._wait_for_blocks()
        shape = self._tell_apart(self._shape(plan))
        self.last_shape = shape
        requests, context, prefill, sampled, since_prefill, after_idle, drafts, rounds, _ = shape
        drafting = 0.0
        if prefill or sampled != requests or since_prefill or after_idle or drafts or rounds:
            estimate = self._cost.step(shape)
            seconds, self.last_binding = float(getattr(estimate, self._bound)), estimate.binding
            drafting = estimate.drafting * seconds / estimate.seconds
        else:
            piece = self._curve.piece(requests, context)
            seconds, self.last_binding = piece.at(context), piece.binding
        self.clock.advance(seconds)
        if self._waking:
            self._ended = self.clock.now
        result = StepResult(duration=seconds, timings={"forward": seconds})
        if rounds:
            result.timings = {"forward": seconds - drafting, "draft": drafting}
        self._draw(plan, sampled, result)
        if self.tiers is not None:
            self.tiers.end(result, self.clock.now)
        return result

    def _wait_for_blocks(self) -> StepResult:
        """A step without a pass: until the next blocks have arrived, if any are to come.

        Where other replicas send some, it ends at once: until then, a request may come.
        """
        assert self.tiers is not None
        began, arrival = self.clock.now, self.tiers.next_arrival()
        self.waits = self.tiers.peers is not None
        if arrival is not None and not self.waits:
            self.clock.advance_to(arrival)
        result = StepResult(duration=self.clock.now - began)
        self.last_shape, self.last_binding = StepShape(0, 0, (), 0), ""
        self.tiers.end(result, self.clock.now)
        return result

    @property
    def settled(self) -> bool:
        """Whether the next step, if it only decodes, takes what it would take at any other time."""
        return not (self._unsettled or (self._waking and self._was_idle()))

    def decode_run(self, num_requests: int, context: int, max_steps: int, until: float) -> RunTimes:
        """Consecutive steps from now on in which this many requests decode, all ``settled``.

        They go on to the first that ends at ``until`` or later, at least one and at most
        ``max_steps``. The caller advances the clock.

        Args:
            context: Tokens that the requests attend to together in the first step; each further
                step adds one for each request.
        """
        run = self._curve.run(num_requests, context, max_steps, self.clock.now, until)
        self._ended = run.times[-1]
        self.last_bindings = run.bindings
        return run

    def last_step_of_run(self, num_requests: int, context: int, max_steps: int) -> float:
        """When the last step of such a run begins, if nothing cuts it short; two steps at least."""
        run = self._curve.run(num_requests, context, max_steps, self.clock.now, math.inf)
        return run.times[-2]

    def _was_idle(self) -> bool:
        """Whether time went on since the last step."""
        return self.clock.now > self._ended

    def _tell_apart(self, shape: StepShape) -> StepShape:
        """The shape with what the cost model tells apart: its distance from prefill and idling."""
        if self._settling and shape.prefill:
            self._unsettled = self._settling
        elif self._unsettled:
            shape = shape._replace(since_prefill=self._settling - self._unsettled + 1)
            self._unsettled -= 1
        if self._waking and self._was_idle():
            shape = shape._replace(after_idle=True)
        return shape

    def close(self) -> None:
        """Nothing to free."""

    def _update_requests(self, plan: StepPlan) -> None:
        """Only under speculation do draws depend on more than the plan."""
        if self.acceptance is not None:
            for request_id in plan.released:
                self._seeds.pop(request_id, None)
                self._drafted.pop(request_id, None)
            for request_id, new in plan.new_requests.items():
                self._seeds[request_id] = new.spec.seed

    def _shape(self, plan: StepPlan) -> StepShape:
        """What a plan computes. A request that lacks one token decodes, drafts or none."""
        decode_requests = decode_context = sampled = drafts = rounds = 0
        prefill = []
        for share in plan.scheduled.values():
            num_drafts, start, count = len(share.draft_token_ids), share.start, share.num_tokens
            sampled += share.samples
            if count - num_drafts == 1:
                decode_requests += 1
                decode_context += start + count
                drafts += num_drafts
            else:
                prefill.append((count, start))
            rounds = max(rounds, share.max_new_drafts)
        shape = StepShape(decode_requests, decode_context, tuple(prefill), sampled)
        if self.acceptance is None:
            return shape
        lacking = self._lacking(plan)
        if not (drafts or rounds or lacking):
            return shape
        return shape._replace(drafts=drafts, draft_rounds=rounds, draft_prefill=lacking)

    def _lacking(self, plan: StepPlan) -> tuple[tuple[int, int], ...]:
        """Prompts that a draft model computes before it drafts: when it first needs them.

        Of a cached prefix it has what the target has. What it lacks of a request that goes on
        decoding is as much as the target computes, and part of a round.
        """
        prompts = []
        for request_id, share in plan.scheduled.items():
            start, end = share.start, share.start + share.num_tokens
            begin = min(self._drafted.get(request_id, start), start)
            if share.samples and share.max_new_drafts:
                if end - begin > 1 + len(share.draft_token_ids):
                    prompts.append((end - begin, begin))
                begin = end
            self._drafted[request_id] = begin
        return tuple(prompts)

    def _draw(self, plan: StepPlan, sampled: int, result: StepResult) -> None:
        if self.acceptance is None:
            if sampled == len(plan.scheduled):
                result.token_ids = dict.fromkeys(plan.scheduled, self._one)
            else:
                drawing = [name for name, share in plan.scheduled.items() if share.samples]
                result.token_ids = dict.fromkeys(drawing, self._one)
            return
        for request_id, share in plan.scheduled.items():
            if not share.samples:
                continue
            accepted = 0
            if num_drafts := len(share.draft_token_ids):
                position = share.start + share.num_tokens - num_drafts
                seed = self._seeds[request_id]
                accepted = self.acceptance.num_accepted(seed, position, num_drafts)
                result.num_accepted_drafts[request_id] = accepted
            result.token_ids[request_id] = [TOKEN] * (1 + accepted)
            if share.max_new_drafts:
                result.draft_token_ids[request_id] = [TOKEN] * share.max_new_drafts
