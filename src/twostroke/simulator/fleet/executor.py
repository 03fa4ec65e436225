"""An executor that computes no tokens, only how long the hardware at hand would take for them."""

from __future__ import annotations

from twostroke.core.step import ScheduledRequest, StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.simulator.cost.estimate import CostModel
from twostroke.simulator.cost.step_shape import StepShape
from twostroke.simulator.fleet.acceptance import Acceptance
from twostroke.simulator.fleet.clock import VirtualClock
from twostroke.simulator.jumping.decode_curve import Bound, DecodeCurve, RunTimes

# Every draw gives this token. Lengths come from the workload: requests ignore the end token.
TOKEN = 0


class SimulatedExecutor:
    """Implements ``engine.executor.Executor``; ``execute`` advances the clock by the step's time.

    Args:
        info: The pretended model and its KV cache.
        cost: What a step takes.
        clock: The engine's clock.
        bound: Which end of the estimate's interval is taken for the truth.
        acceptance: How drafts fare under speculation, which the cost model must know of too;
            ``None``: there are none.
        settling: How many steps after one that prefills the cost model tells apart from later ones.
        waking: Whether it tells apart steps before which the engine was idle.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        cost: CostModel,
        clock: VirtualClock,
        *,
        bound: Bound = "seconds",
        acceptance: Acceptance | None = None,
        settling: int = 0,
        waking: bool = False,
    ) -> None:
        self.info = info
        self.clock = clock
        self.acceptance = acceptance
        self.last_shape = StepShape(0, 0, (), 0)
        self.last_binding = ""
        self.last_bindings: list[tuple[str, int]] = []
        self._requests: dict[str, tuple[int, int]] = {}  # number of prompt tokens, and seed
        self._cost = cost
        self._bound = bound
        self._curve = DecodeCurve(cost, bound)
        self._one = [TOKEN]
        self._settling = settling
        self._unsettled = 0  # of the next steps
        self._waking = waking
        self._ended = 0.0  # the last step

    def execute(self, plan: StepPlan) -> StepResult:
        """Draw ``TOKEN`` for each request that samples, and say how long the step would take."""
        self._update_requests(plan)
        shape = self._tell_apart(self._shape(plan))
        self.last_shape = shape
        requests, context, prefill, sampled, since_prefill, after_idle = shape
        if prefill or sampled != requests or since_prefill or after_idle:
            estimate = self._cost.step(shape)
            seconds, self.last_binding = float(getattr(estimate, self._bound)), estimate.binding
        else:
            piece = self._curve.piece(requests, context)
            seconds, self.last_binding = piece.at(context), piece.binding
        self.clock.advance(seconds)
        if self._waking:
            self._ended = self.clock.now
        token_ids = self._draw(plan, sampled)
        return StepResult(token_ids=token_ids, duration=seconds, timings={"forward": seconds})

    @property
    def settled(self) -> bool:
        """Whether the next step, if it only decodes, takes what it would take at any other time."""
        return not (self._unsettled or (self._waking and self._was_idle()))

    def decode_run(self, num_requests: int, context: int, max_steps: int, until: float) -> RunTimes:
        """Consecutive steps from now on in which so many requests decode, all ``settled``.

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
        """Only under speculation do durations and draws depend on more than the plan."""
        if self.acceptance is not None:
            for request_id in plan.released:
                self._requests.pop(request_id, None)
            for request_id, new in plan.new_requests.items():
                self._requests[request_id] = new.num_prompt_tokens, new.seed

    def _shape(self, plan: StepPlan) -> StepShape:
        """What a plan computes.

        Under speculation a decoding request may lack as many tokens beyond the last as drafts were
        accepted: the scheduler learns of these as of any new tokens, and lets the next step compute
        them. The time for that is part of verifying them.
        """
        max_missing = 1 if self.acceptance is None else 1 + self.acceptance.tokens
        decode_requests = decode_context = sampled = 0
        prefill = []
        for share in plan.scheduled.values():
            start, count = share.start, share.num_tokens
            sampled += share.samples
            if count == 1 or (share.samples and count <= max_missing and self._decodes(share)):
                decode_requests += 1
                decode_context += start + count
            else:
                prefill.append((count, start))
        return StepShape(decode_requests, decode_context, tuple(prefill), sampled)

    def _decodes(self, share: ScheduledRequest) -> bool:
        num_prompt_tokens, _ = self._requests[share.request_id]
        return share.start >= num_prompt_tokens

    def _draw(self, plan: StepPlan, sampled: int) -> dict[str, list[int]]:
        if self.acceptance is not None:
            return {
                request_id: [TOKEN] * (1 + self._num_accepted(share))
                for request_id, share in plan.scheduled.items()
                if share.samples
            }
        if sampled == len(plan.scheduled):
            return dict.fromkeys(plan.scheduled, self._one)
        drawing = [name for name, share in plan.scheduled.items() if share.samples]
        return dict.fromkeys(drawing, self._one)

    def _num_accepted(self, share: ScheduledRequest) -> int:
        if self.acceptance is None or not self._decodes(share):
            return 0
        _, seed = self._requests[share.request_id]
        return self.acceptance.num_accepted(seed, share.start + share.num_tokens)
