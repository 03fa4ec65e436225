"""The depth of speculation that gives the most tokens per second, 0 included.

Drafting pays while the expected tokens of a pass, over its time, rise. What is expected,
``draft_estimates.py`` says; what may be lost when it was wrong, ``trial_budget.py``; here is what
each request does about it (docs/decisions/0064-depth-from-measured-steps.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from twostroke.core.request import Request
from twostroke.core.step import DepthChange, DepthReason, StepPlan, StepResult
from twostroke.scheduling.draft_estimates import (
    DOUBTED_AFTER,
    Acceptance,
    DraftTimes,
    Outlook,
)
from twostroke.scheduling.speculation import ToldDepths
from twostroke.scheduling.trial_budget import SHARE, TrialBudget

# Acceptance that is expected of a position before anything is known: high, so that it is tried.
FIRST_GUESS = 0.8
# What is expected of a request, from all of them, counts as so many of its own drafts.
PRIOR_DRAFTS = 6.0
# What remains of a request's, and of all requests', earlier drafts after each new one.
KEPT_OF_REQUEST, KEPT_OF_ALL = 0.9, 0.98
# Steps for which a decision holds, and for which a request pauses where drafting does not pay: the
# longer the more often it did not, up to where trying again costs its share of the time.
HOLDS_FOR, FIRST_PAUSE, LONGEST_PAUSE = 4, 8, 512
# Steps after the first one in which every new measurement counts at once.
LEARNS_FOR = 64
# Of steps without drafts every fourth is measured: a small model's are short beside that.
PLAIN_EVERY = 4
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
    """What is known of one request, and what was decided for it.

    Attributes:
        making: How often there were drafts when some were asked for; ``made``: whether there were
            at the latest time.
        has_drafted: Whether drafts were asked for before, and so its prompt read for them.
        tried: The depth of the latest try; ``came_true``: whether all its drafts were accepted.
        reason: Why the latest decision was made; ``gain``: the best depth's, as it was estimated.
    """

    acceptance: Acceptance
    making: float
    made: bool = True
    has_drafted: bool = False
    mode: _Mode = _Mode.WAITING
    pause: int = 2 * FIRST_PAUSE
    depth: int = 0
    holds_for: int = 0
    tried: int = 0
    came_true: bool = False
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
        self._reads_prompts = reads_prompts
        self._most = most
        self._requests: dict[str, _RequestDepth] = {}
        self._all = Acceptance(KEPT_OF_ALL)
        self._making = 1.0
        self._times = DraftTimes(at_once=at_once)
        self._budget = TrialBudget(reads_prompts=reads_prompts)
        self._outlook: Outlook | None = None
        self._has_asked = False  # for drafts, in the step that is planned
        # Whether a prompt was read for drafts in the latest step: it says nothing of later ones.
        self._reads_now = False
        self._num_drawing = 1
        self._step = 0
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
            state = _RequestDepth(Acceptance(KEPT_OF_REQUEST), self._making)
            self._requests[request.request_id] = state
        if self._budget.is_spent and state.trusts_estimates:
            return 0, DepthReason.NO_BUDGET
        if state.holds_for > 0 and not (state.mode is _Mode.TRYING and state.made):
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
        self._step += 1
        num_drafts = num_right = 0
        for request_id, num_accepted in result.num_accepted_drafts.items():
            count = len(plan.scheduled[request_id].draft_token_ids)
            num_drafts += count
            num_right += num_accepted
            self._all.add(count, num_accepted)
            if (state := self._requests.get(request_id)) is not None:
                state.acceptance.add(count, num_accepted)
                state.came_true = num_accepted == count
        if num_drafts:
            self._steps_with_drafts += self._in_doubt
        elif self._steps_with_drafts >= REMEASURED_AFTER:
            self._steps_with_drafts, self._in_doubt = 0, False
        if num_drawing := len(result.token_ids):
            self._num_drawing = num_drawing
            self._measure(plan, result, num_drafts, num_right)
        self._has_asked = False

    def _measure(self, plan: StepPlan, result: StepResult, num_drafts: int, num_right: int) -> None:
        """Note how long drafting took, and the pass if it did nothing but decode; and what drafts
        lost."""
        rows, times = self._num_drawing, self._times
        drafts = num_drafts or result.draft_token_ids or not times.largest_pass
        measures = bool(drafts) or self._step % PLAIN_EVERY == 0
        drafting = result.timings.get("draft", 0.0)
        if measures and plan.num_tokens == rows + num_drafts:
            times.add_pass(rows + num_drafts, result.duration - drafting, self._step)
        plain, loss, reading = times.of_pass(rows), 0.0, 0.0
        if self._has_asked and (asked := self._count_made(plan, result)):
            if measures and not self._reads_now:
                times.add_drafting(asked, drafting, self._step)
            times.drafted_at = self._step
            loss = times.charge(asked, drafting)
            reading = drafting - loss if self._reads_now else 0.0
        if num_drafts:
            loss += times.of_pass(rows + num_drafts) - plain * (1 + num_right / rows)
        if times.largest_pass:
            self._budget.add_step(loss, reading, plain)

    def _count_made(self, plan: StepPlan, result: StepResult) -> int:
        """Note which requests got drafts, of those that were to. Returns the greatest depth."""
        asked, self._reads_now = 0, False
        for request_id, share in plan.scheduled.items():
            if not share.max_new_drafts or request_id not in result.token_ids:
                continue
            asked = max(asked, share.max_new_drafts)
            made = request_id in result.draft_token_ids
            self._making += (made - self._making) * (1 - KEPT_OF_ALL)
            if (state := self._requests.get(request_id)) is not None:
                self._reads_now = self._reads_now or not state.has_drafted
                state.made, state.has_drafted = made, True
                state.making += (made - state.making) * (1 - KEPT_OF_REQUEST)
        self._reads_now = self._reads_now and self._reads_prompts
        return asked

    def _decide(self, state: _RequestDepth) -> None:
        """Choose a request's depth for the next steps."""
        if state.mode is _Mode.TRYING and state.made:  # the step that is planned now verifies them
            state.mode, state.depth, state.holds_for = _Mode.WAITING, 0, 0
            state.reason = DepthReason.AWAITED
            return
        outlook = self._look_out()
        depth, gain = outlook.best(state.acceptance.rates(outlook.prior, PRIOR_DRAFTS))
        state.gain = gain
        enough = 1.0 if state.mode is _Mode.DRAFTING else LEAST_GAIN
        if not self._all.tried:
            self._try(state, 1)
        elif gain > enough and self._looking_pays(state, gain, depth) and self._may_begin(state):
            state.mode, state.depth, state.holds_for = _Mode.DRAFTING, depth, HOLDS_FOR - 1
            state.reason = DepthReason.PAYS
            state.pause = FIRST_PAUSE
            self._times.believe()
            self._in_doubt = self._in_doubt or gain < CLEAR_GAIN
        elif state.came_true and state.tried:  # once more, twice as deep: others say little of it
            self._try(state, min(2 * state.tried, self._most))
        elif state.mode is _Mode.PAUSING or not (state.has_drafted and state.made):
            self._try(state, 1)  # its pause is over, it found nothing yet, or it is new
        else:
            # To the next multiple: requests try in the same steps, which drafting delays once.
            pause = state.pause - self._step % state.pause
            self._pause(state, pause, DepthReason.DOES_NOT_PAY)
            state.pause = min(2 * state.pause, self._longest_pause())
            state.tried = 0

    def _looking_pays(self, state: _RequestDepth, gain: float, depth: int) -> bool:
        """Whether there are drafts often enough for the time that making them takes."""
        looking = self._times.of_drafting(depth) / self._times.of_pass(self._num_drawing)
        gained = state.making * (gain - 1.0)
        return gained - (1.0 - state.making) * looking >= -COST_OF_LOOKING

    def _may_begin(self, state: _RequestDepth) -> bool:
        """Whether it has drafted before, or the budget covers that its drafts may be wrong."""
        if state.acceptance.tried:
            return not self._budget.is_spent
        cost = self._times.of_trying(self._num_drawing, 1)
        return not self._budget.is_spent and self._budget.reserve(cost, on_loan=True)

    def _try(self, state: _RequestDepth, wanted: int) -> None:
        """One step with drafts, if they could pay and the budget covers that they do not.

        Where none were made, as of n-grams, it is not over yet.
        """
        _, gain = self._look_out().best([1.0] * self._most)
        measures = gain < LEAST_GAIN
        if measures:
            wanted = 1
        if measures and not self._times.is_doubtful(self._num_drawing, self._step):
            pause = DOUBTED_AFTER - self._step % DOUBTED_AFTER
            self._pause(state, pause, DepthReason.CANNOT_PAY)
        elif self._is_covered(state, wanted, measures):
            state.mode, state.depth, state.tried = _Mode.TRYING, wanted, wanted
            state.came_true = state.made = False
            state.reason = DepthReason.TRIAL
            state.holds_for = LOOKS_FOR - 1
            if measures:
                self._times.doubt(self._num_drawing, self._step)
        else:
            self._pause(state, FIRST_PAUSE - self._step % FIRST_PAUSE, DepthReason.NO_BUDGET)

    def _is_covered(self, state: _RequestDepth, wanted: int, measures: bool) -> bool:
        """Whether a trial is: one that goes on from drafts that came true is, whatever is owed."""
        if state.came_true and wanted > 1:
            return True
        cost = self._times.of_trying(self._num_drawing, wanted)
        return self._budget.reserve(cost, on_loan=measures or not state.acceptance.tried)

    def _pause(self, state: _RequestDepth, steps: int, reason: DepthReason) -> None:
        state.mode, state.depth, state.holds_for = _Mode.PAUSING, 0, steps - 1
        state.reason = reason

    def _longest_pause(self) -> int:
        """So many steps between two tries cost little enough: a power of two."""
        rows, times = self._num_drawing, self._times
        extra = times.of_pass(2 * rows) + times.of_drafting(1) - times.of_pass(rows)
        steps = extra / (SHARE * times.of_pass(rows))
        pause = 2 * FIRST_PAUSE
        while pause < min(steps, LONGEST_PAUSE):
            pause *= 2
        return pause

    def _look_out(self) -> Outlook:
        """The outlook, as of the last few steps."""
        rows, outlook = self._num_drawing, self._outlook
        age = 1 if self._step < LEARNS_FOR else HOLDS_FOR
        if outlook is None or outlook.rows != rows or self._step - outlook.step >= age:
            prior = self._all.estimates(self._most, FIRST_GUESS, PRIOR_DRAFTS)
            outlook = Outlook.of(self._step, rows, prior, self._times, self._most)
            self._outlook = outlook
        return outlook
