"""An executor that computes no tokens, only how long the hardware at hand would take for them."""

from __future__ import annotations

from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import ExecutorInfo
from twostroke.simulator.cost.cost_model import CostModel
from twostroke.simulator.cost.decode_curve import Bound, DecodeCurve, DecodeRun
from twostroke.simulator.cost.step_shape import StepShape
from twostroke.simulator.fleet.acceptance import Acceptance
from twostroke.simulator.fleet.clock import VirtualClock

# Every draw gives this token. Lengths come from the workload: requests ignore the end token.
TOKEN = 0


class SimulatedExecutor:
    """Implements ``engine.executor.Executor``. ``execute`` advances the clock by what the step
    would take.

    Args:
        info: The pretended model and its KV cache.
        cost: What a step takes.
        clock: The engine's clock.
        bound: Which end of the estimate's interval is taken for the truth.
        acceptance: How drafts fare under speculation, which the cost model must know of too;
            ``None``: there are none.
        settling: How many steps after one that prefills the cost model tells apart from later ones.
        waking: Whether it tells steps apart before which nobody was there: time went on since the
            last.
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
        self._cost = cost
        self._bound = bound
        self._curve = DecodeCurve(cost, bound)
        self._one = [TOKEN]
        self._settling = settling
        self._unsettled = 0  # of the next steps
        self._waking = waking
        self._ended = 0.0  # the last step

    def execute(self, plan: StepPlan, others: int = 0, context: int = 0) -> StepResult:
        """A step.

        Args:
            others: Requests that decode in it and are not in the plan; ``context``: tokens that
                those attend to.
        """
        shape = step_shape(
            plan, 0 if self.acceptance is None else self.acceptance.tokens, others, context
        )
        self.last_shape = shape
        if self._settling:
            shape = self.last_shape = self._settle(shape)
        if self._waking and self._was_idle():
            shape = self.last_shape = shape._replace(after_idle=True)
        requests, context, prefill, sampled, since_prefill, after_idle = shape
        if prefill or sampled != requests or since_prefill or after_idle:
            estimate = self._cost.step(shape)
            seconds, self.last_binding = float(getattr(estimate, self._bound)), estimate.binding
        else:
            start, _, at_start, slope, self.last_binding = self._curve.piece(requests, context)
            seconds = at_start + (context - start) * slope
        self.clock.advance(seconds)
        if self._waking:
            self._ended = self.clock.now
        drawn = self._draw(plan, sampled - others)
        return StepResult(token_ids=drawn, duration=seconds, timings={"forward": seconds})

    @property
    def settled(self) -> bool:
        """Whether the next step, if it only decodes, takes what it would take at any other time."""
        return not (self._unsettled or (self._waking and self._was_idle()))

    def decode_run(self, requests: int, context: int, steps: int, until: float) -> DecodeRun:
        """Consecutive steps from now on in which ``requests`` requests decode, at most ``steps``,
        all ``settled``.

        They go on to the first that ends at ``until`` or later, at least one. The caller takes the
        clock there.

        Args:
            context: Tokens that the requests attend to in the first step; one more each in every
                further one.
        """
        run = self._curve.run(requests, context, steps, self.clock.now, until)
        self._ended = run.times[-1]
        return run

    def _was_idle(self) -> bool:
        """Whether time went on since the last step."""
        return self.clock.now > self._ended

    def _settle(self, shape: StepShape) -> StepShape:
        """The shape with its distance from the last step that prefilled."""
        if shape.prefill:
            self._unsettled = self._settling
        elif self._unsettled:
            shape = shape._replace(since_prefill=self._settling - self._unsettled + 1)
            self._unsettled -= 1
        return shape

    def close(self) -> None:
        """Nothing to free."""

    def _draw(self, plan: StepPlan, sampled: int) -> dict[str, list[int]]:
        acceptance = self.acceptance
        if acceptance is None and sampled == len(plan.scheduled):
            return dict.fromkeys(plan.scheduled, self._one)
        if acceptance is None:
            return dict.fromkeys(
                [name for name, item in plan.scheduled.items() if item.samples], self._one
            )
        drawn = {}
        for request_id, item in plan.scheduled.items():
            if item.samples:
                request = item.request
                decodes = item.start >= request.num_prompt_tokens
                extra = (
                    acceptance.num_accepted(request.sequence_number, request.num_tokens)
                    if decodes
                    else 0
                )
                drawn[request_id] = [TOKEN] * (1 + extra)
        return drawn


def step_shape(plan: StepPlan, drafts: int = 0, others: int = 0, context: int = 0) -> StepShape:
    """What a plan computes.

    Args:
        drafts: Tokens that a decoding request may lack beyond the last. The scheduler learns of
            accepted drafts as of any new tokens and lets the next step compute them; the time for
            that is part of verifying them.
        others: Requests that decode beside the plan's; ``context``: tokens that those attend to.
    """
    decode_requests = sampled = others
    decode_context = context
    prefill = []
    for item in plan.scheduled.values():
        start, count = item.start, item.num_tokens
        end = start + count
        samples = end == len(item.request.token_ids)
        if samples:
            sampled += 1
        if count == 1 or (
            count <= drafts + 1 and samples and start >= item.request.num_prompt_tokens
        ):
            decode_requests += 1
            decode_context += end
        else:
            prefill.append((count, start))
    return StepShape(decode_requests, decode_context, tuple(prefill), sampled)
