"""The depth of speculation that gives the most tokens per second, 0 included.

Drafting pays while the expected tokens of a pass, over its time, rise. What is expected,
``draft_estimates.py`` says; what may be lost when it was wrong, ``trial_budget.py``; here is what
each request does about it (docs/decisions/0012-step-times-are-measured.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from twostroke.core.request import Request
from twostroke.core.step import DepthChange, DepthReason, StepPlan, StepResult
from twostroke.scheduling.draft_estimates import HOLDS_FOR, DraftEstimator, DraftRecord
from twostroke.scheduling.speculation import ToldDepths
from twostroke.timing.draft_times import DOUBTED_AFTER
from twostroke.timing.trial_budget import SHARE, TrialBudget

# Steps for which a request pauses where drafting does not pay: the longer the more often it did
# not, up to where trying again costs its share of the time.
FIRST_PAUSE, LONGEST_PAUSE = 8, 512
# Steps for which a request looks for something to quote before that is decided anew.
LOOKS_FOR = 8
# A depth must promise so much more than none before it is taken up: less may be noise.
LEAST_GAIN = 1.03
# Looking for something to quote, and finding nothing, may go on for this share of a step.
COST_OF_LOOKING = 0.004
# Where it promises less than this, a step without drafts is taken now and then, to measure one.
CLEAR_GAIN, REMEASURED_AFTER = 1.5, 128


class _Mode(Enum):
    """What a request does: it drafts; it drafts once, to see; what that gave is awaited; it does
    without for a while."""

    DRAFTING = 0
    TRYING = 1
    WAITING = 2
    PAUSING = 3


@dataclass(slots=True)
class _RequestDepth:
    """What was decided for one request.

    Attributes:
        record: What is known of its drafts.
        tried: The depth of the latest try.
        reason: Why the latest decision was made.
        gain: The best depth's, as it was estimated.
    """

    record: DraftRecord
    mode: _Mode = _Mode.WAITING
    pause: int = 2 * FIRST_PAUSE
    depth: int = 0
    holds_for: int = 0
    tried: int = 0
    reason: DepthReason = DepthReason.TRIAL
    gain: float = 0.0

    @property
    def trusts_estimates(self) -> bool:
        """Whether it does what estimates say that have been believed; else they are being tried."""
        if self.mode is _Mode.PAUSING:
            return self.reason is not DepthReason.CANNOT_PAY
        return self.mode is _Mode.DRAFTING


class AdaptiveDepth:
    """A ``DraftDepth``; see the module.

    Args:
        most: The greatest depth.
        reads_prompts: Whether a request's first drafts cost more, since its prompt is read for it.
        at_once: Whether all drafts are made in one go: more of them take no longer.
    """

    def __init__(
        self,
        most: int,
        *,
        needs_slots: bool = False,
        reads_prompts: bool = False,
        at_once: bool = False,
    ) -> None:
        self.needs_slots = needs_slots
        self._most = most
        self._estimator = DraftEstimator(most, reads_prompts=reads_prompts, at_once=at_once)
        self._budget = TrialBudget(reads_prompts=reads_prompts)
        self._requests: dict[str, _RequestDepth] = {}
        self._has_asked = False  # for drafts, in the step that is planned
        # Since one without drafts; whether what they gain is in doubt.
        self._steps_with_drafts, self._in_doubt = 0, False
        self._told = ToldDepths()

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        depth, reason = self._choose(request)
        request_id = request.request_id
        if changes is not None and self._told.is_new(request_id, depth, reason):
            change = DepthChange(request_id, depth, reason)
            state = self._requests.get(request_id)
            if state is not None and reason is state.reason:
                pause = state.holds_for + 1 if state.mode is _Mode.PAUSING else 0
                change = DepthChange(request_id, depth, reason, round(state.gain, 3), pause)
            changes.append(change)
        return depth

    def _choose(self, request: Request) -> tuple[int, DepthReason]:
        asked = request.params.speculation
        if asked == 0:
            return 0, DepthReason.ASKED
        if self._steps_with_drafts >= REMEASURED_AFTER:
            return 0, DepthReason.REMEASURE
        state = self._requests.get(request.request_id)
        if state is None:
            state = _RequestDepth(self._estimator.record_of(request.request_id))
            self._requests[request.request_id] = state
        if self._budget.is_spent and state.trusts_estimates:
            return 0, DepthReason.NO_BUDGET
        if state.holds_for > 0 and not (state.mode is _Mode.TRYING and state.record.made):
            state.holds_for -= 1
        else:
            self._decide(state)
        self._has_asked = self._has_asked or state.depth > 0
        if asked is not None and asked < state.depth:
            return asked, DepthReason.ASKED
        return state.depth, state.reason

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        for request_id in plan.released:
            self._requests.pop(request_id, None)
        self._told.forget(plan.released)
        cost = self._estimator.observe(plan, result, asked=self._has_asked)
        if self._estimator.num_drafts:
            self._steps_with_drafts += self._in_doubt
        elif self._steps_with_drafts >= REMEASURED_AFTER:
            self._steps_with_drafts, self._in_doubt = 0, False
        if cost is not None:
            self._budget.add_step(*cost)
        self._has_asked = False

    def _decide(self, state: _RequestDepth) -> None:
        """Choose a request's depth for the next steps."""
        record, estimator = state.record, self._estimator
        if state.mode is _Mode.TRYING and record.made:  # the step that is planned now verifies them
            state.mode, state.depth, state.holds_for = _Mode.WAITING, 0, 0
            state.reason = DepthReason.AWAITED
            return
        depth, gain = estimator.best(record)
        state.gain = gain
        enough = 1.0 if state.mode is _Mode.DRAFTING else LEAST_GAIN
        if not estimator.knows_acceptance:
            self._try(state, 1)
        elif (
            gain > enough
            and estimator.of_looking(record, gain, depth) >= -COST_OF_LOOKING
            and self._may_begin(record)
        ):
            state.mode, state.depth, state.holds_for = _Mode.DRAFTING, depth, HOLDS_FOR - 1
            state.reason = DepthReason.PAYS
            state.pause = FIRST_PAUSE
            estimator.times.believe()
            self._in_doubt = self._in_doubt or gain < CLEAR_GAIN
        elif record.came_true and state.tried:  # once more, twice as deep: others say little of it
            self._try(state, min(2 * state.tried, self._most))
        elif state.mode is _Mode.PAUSING or not (record.has_drafted and record.made):
            self._try(state, 1)  # its pause is over, it found nothing yet, or it is new
        else:
            self._pause(state, state.pause, DepthReason.DOES_NOT_PAY)
            state.pause = min(2 * state.pause, self._longest_pause())
            state.tried = 0

    def _may_begin(self, record: DraftRecord) -> bool:
        """Whether it has drafted before, or the budget covers that its drafts may be wrong."""
        if self._budget.is_spent:
            return False
        if record.acceptance.tried:
            return True
        return self._budget.reserve(self._estimator.of_trying(1), on_loan=True)

    def _try(self, state: _RequestDepth, wanted: int) -> None:
        """One step with drafts, if they could pay and the budget covers that they do not.

        Where none were made, as of n-grams, it is not over yet.
        """
        rows, step, times = self._estimator.num_drawing, self._estimator.step, self._estimator.times
        measures = self._estimator.best_possible() < LEAST_GAIN
        if measures:
            wanted = 1
        if measures and not times.is_doubtful(rows, step):
            self._pause(state, DOUBTED_AFTER, DepthReason.CANNOT_PAY)
        elif self._is_covered(state, wanted, measures):
            state.mode, state.depth, state.tried = _Mode.TRYING, wanted, wanted
            state.record.came_true = state.record.made = False
            state.reason = DepthReason.TRIAL
            state.holds_for = LOOKS_FOR - 1
            if measures:
                times.doubt(rows, step)
        else:
            self._pause(state, FIRST_PAUSE, DepthReason.NO_BUDGET)

    def _is_covered(self, state: _RequestDepth, wanted: int, measures: bool) -> bool:
        """Whether a trial is: one that goes on from drafts that came true is, whatever is owed."""
        record = state.record
        if record.came_true and wanted > 1:
            return True
        on_loan = measures or not record.acceptance.tried
        return self._budget.reserve(self._estimator.of_trying(wanted), on_loan=on_loan)

    def _pause(self, state: _RequestDepth, every: int, reason: DepthReason) -> None:
        """Keep a decision until the next multiple of ``every``.

        So requests try in the same steps, which drafting delays once.
        """
        steps = every - self._estimator.step % every
        state.mode, state.depth, state.holds_for = _Mode.PAUSING, 0, steps - 1
        state.reason = reason

    def _longest_pause(self) -> int:
        """Steps between two tries, so that these cost little enough: a power of two."""
        rows, times = self._estimator.num_drawing, self._estimator.times
        extra = times.of_pass(2 * rows) + times.of_drafting(1) - times.of_pass(rows)
        steps = extra / (SHARE * times.of_pass(rows))
        pause = 2 * FIRST_PAUSE
        while pause < min(steps, LONGEST_PAUSE):
            pause *= 2
        return pause
