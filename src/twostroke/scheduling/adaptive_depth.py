"""The depth of speculation that gives the most tokens per second, 0 included.

Drafting pays while the expected tokens of a pass, over its time, rise. What is expected,
``draft_estimates.py`` says; what may be lost when it was wrong, ``trial_budget.py``; here is what
each request does about it (docs/decisions/0012-step-times-are-measured.md).

A decision holds for some steps. Then the first line that applies makes the next one:

| the request                                   | does next                                     |
|-----------------------------------------------|-----------------------------------------------|
| is TRYING, and drafts were made               | is WAITING one step, which verifies them      |
| is any, and no draft was ever verified        | tries one draft                               |
| gains by drafting, as is estimated            | is DRAFTING for ``HOLDS_FOR`` steps           |
| has tried, and all its drafts were accepted   | tries twice as many                           |
| is NEW, has paused, or got no drafts yet      | tries one draft                               |
| is any other                                  | is PAUSING, each time twice as long           |

| a trial                                       | makes the request                             |
|-----------------------------------------------|-----------------------------------------------|
| could not pay, were all its drafts accepted   | PAUSING, for ``DOUBTED_AFTER`` steps          |
| is covered by the budget                      | TRYING until drafts are made, for             |
|                                               | ``LOOKS_FOR`` steps at most                   |
| is not covered                                | PAUSING, for ``FIRST_PAUSE`` steps            |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from twostroke.core.request import Request
from twostroke.core.speculation_config import DepthChange, DepthReason
from twostroke.core.step import StepPlan, StepResult
from twostroke.scheduling.draft_estimates import HOLDS_FOR, DraftEstimator, DraftRecord
from twostroke.scheduling.speculation import ToldDepths
from twostroke.timing.draft_times import DOUBTED_AFTER
from twostroke.timing.trial_budget import SHARE, TrialBudget

# The first pause of a request for which drafting does not pay, in steps; each is twice the last.
FIRST_PAUSE = 8
# The longest pause, in steps, unless trying again costs its share of the time before.
LONGEST_PAUSE = 512
# Steps for which a request looks for something to quote before that is decided anew.
LOOKS_FOR = 8
# Tokens a second, as a multiple of those without drafts, from which on a request begins to draft:
# less may be noise.
LEAST_GAIN = 1.03
# The share of a step for which a request may look for something to quote, and find nothing.
COST_OF_LOOKING = 0.004
# Drafts that gain less than this may only seem to gain: a step without drafts is measured anew.
CLEAR_GAIN = 1.5
# Steps with such drafts from one measured step without drafts to the next.
REMEASURED_AFTER = 128


class _Mode(Enum):
    """What a request does; the module says what it does next."""

    NEW = 0
    TRYING = 1
    WAITING = 2
    DRAFTING = 3
    PAUSING = 4


@dataclass(slots=True)
class _RequestDepth:
    """What was decided for one request.

    Attributes:
        record: What is known of its drafts.
        steps_left: Further steps for which the decision holds.
        next_pause: Steps of its next pause, if drafting does not pay.
        tried_depth: The depth of its latest trial; 0 once that did not pay.
        reason: Why the decision was made.
        gain: Tokens a second at the best depth, as a multiple of those without drafts.
    """

    record: DraftRecord
    mode: _Mode = _Mode.NEW
    depth: int = 0
    steps_left: int = 0
    next_pause: int = 2 * FIRST_PAUSE
    tried_depth: int = 0
    reason: DepthReason = DepthReason.TRIAL
    gain: float = 0.0

    def decide(self, mode: _Mode, depth: int, steps: int, reason: DepthReason) -> None:
        """From the step that is planned on, for ``steps`` steps."""
        self.mode, self.depth, self.steps_left, self.reason = mode, depth, steps - 1, reason

    @property
    def trusts_estimates(self) -> bool:
        """Whether it does what estimates say that have been believed; else they are being tried."""
        if self.mode is _Mode.PAUSING:
            return self.reason is not DepthReason.CANNOT_PAY
        return self.mode is _Mode.DRAFTING

    @property
    def has_trial_drafts(self) -> bool:
        """Whether its trial gave drafts, which the step that is planned verifies."""
        return self.mode is _Mode.TRYING and self.record.got_drafts

    @property
    def trial_succeeded(self) -> bool:
        """Whether all its latest drafts were accepted, and it has tried."""
        return self.record.all_accepted and self.tried_depth > 0

    @property
    def knows_little(self) -> bool:
        """Whether its pause is over, it is new, or it found nothing to draft yet."""
        record = self.record
        return self.mode is _Mode.PAUSING or not (record.asked_before and record.got_drafts)


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
        self.needs_slots, self.guesses = needs_slots, True
        self._most = most
        self._estimator = DraftEstimator(most, reads_prompts=reads_prompts, at_once=at_once)
        self._budget = TrialBudget(reads_prompts=reads_prompts)
        self._requests: dict[str, _RequestDepth] = {}
        self._has_asked = False  # for drafts, in the step that is planned
        # Whether drafts gain less than ``CLEAR_GAIN``; steps with drafts while that is so.
        self._in_doubt = False
        self._doubtful_steps = 0
        self._told = ToldDepths()

    def choose(self, request: Request, changes: list[DepthChange] | None = None) -> int:
        depth, reason = self._choose(request)
        request_id = request.request_id
        if changes is not None and self._told.is_new(request_id, depth, reason):
            change = DepthChange(request_id, depth, reason)
            state = self._requests.get(request_id)
            if state is not None and reason is state.reason:
                pause = state.steps_left + 1 if state.mode is _Mode.PAUSING else 0
                change = DepthChange(request_id, depth, reason, round(state.gain, 3), pause)
            changes.append(change)
        return depth

    def _choose(self, request: Request) -> tuple[int, DepthReason]:
        asked = request.params.speculation
        if asked == 0:
            return 0, DepthReason.ASKED
        if self._doubtful_steps >= REMEASURED_AFTER:
            return 0, DepthReason.REMEASURE
        state = self._requests.get(request.request_id)
        if state is None:
            state = _RequestDepth(self._estimator.record_of(request.request_id))
            self._requests[request.request_id] = state
        if self._budget.is_spent and state.trusts_estimates:
            return 0, DepthReason.NO_BUDGET
        if state.steps_left > 0 and not state.has_trial_drafts:
            state.steps_left -= 1
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
            self._doubtful_steps += self._in_doubt
        elif self._doubtful_steps >= REMEASURED_AFTER:
            self._doubtful_steps, self._in_doubt = 0, False
        if cost is not None:
            self._budget.add_step(cost.loss, cost.reading, cost.plain)
        self._has_asked = False

    def _decide(self, state: _RequestDepth) -> None:
        """Make a request's next decision, by the table of the module."""
        if state.has_trial_drafts:
            state.decide(_Mode.WAITING, depth=0, steps=1, reason=DepthReason.AWAITED)
            return
        depth, state.gain = self._estimator.best(state.record)
        if not self._estimator.knows_acceptance:
            self._try(state, 1)
        elif self._pays(state, depth):
            self._draft(state, depth)
        elif state.trial_succeeded:  # others' acceptance says little of it: once more, deeper
            self._try(state, min(2 * state.tried_depth, self._most))
        elif state.knows_little:
            self._try(state, 1)
        else:
            self._pause(state, state.next_pause, DepthReason.DOES_NOT_PAY)
            state.next_pause = min(2 * state.next_pause, self._longest_pause())
            state.tried_depth = 0

    def _pays(self, state: _RequestDepth, depth: int) -> bool:
        """Whether drafting gains as is estimated, and the budget covers that it does not.

        A request that has drafted before needs no cover: its own drafts are part of the estimate.
        """
        record, estimator = state.record, self._estimator
        if state.gain <= (1.0 if state.mode is _Mode.DRAFTING else LEAST_GAIN):
            return False
        if estimator.net_gain(record, state.gain, depth) < -COST_OF_LOOKING:
            return False
        if self._budget.is_spent:
            return False
        has_drafted = bool(record.acceptance.tried)
        return has_drafted or self._budget.reserve(estimator.seconds_of_trial(1), on_loan=True)

    def _draft(self, state: _RequestDepth, depth: int) -> None:
        state.decide(_Mode.DRAFTING, depth, HOLDS_FOR, DepthReason.PAYS)
        state.next_pause = FIRST_PAUSE
        self._estimator.times.believe()
        self._in_doubt = self._in_doubt or state.gain < CLEAR_GAIN

    def _try(self, state: _RequestDepth, wanted: int) -> None:
        """Ask for drafts once, to see how they fare, by the second table of the module.

        Where even right drafts could not pay, one trial now and then measures whether that is so.
        """
        rows, step, times = self._estimator.num_drawing, self._estimator.step, self._estimator.times
        cannot_pay = self._estimator.best_possible() < LEAST_GAIN
        if cannot_pay:
            wanted = 1
        if cannot_pay and not times.is_doubtful(rows, step):
            self._pause(state, DOUBTED_AFTER, DepthReason.CANNOT_PAY)
        elif self._is_covered(state, wanted, measures=cannot_pay):
            state.decide(_Mode.TRYING, wanted, LOOKS_FOR, DepthReason.TRIAL)
            state.tried_depth = wanted
            state.record.all_accepted = state.record.got_drafts = False
            if cannot_pay:
                times.doubt(rows, step)
        else:
            self._pause(state, FIRST_PAUSE, DepthReason.NO_BUDGET)

    def _is_covered(self, state: _RequestDepth, wanted: int, *, measures: bool) -> bool:
        """Whether the budget covers a trial: always one that goes on from accepted drafts."""
        record = state.record
        if record.all_accepted and wanted > 1:
            return True
        on_loan = measures or not record.acceptance.tried
        return self._budget.reserve(self._estimator.seconds_of_trial(wanted), on_loan=on_loan)

    def _pause(self, state: _RequestDepth, every: int, reason: DepthReason) -> None:
        """Ask for no drafts until the next step that is a multiple of ``every``.

        So requests try in the same steps, which drafting delays once.
        """
        steps = every - self._estimator.step % every
        state.decide(_Mode.PAUSING, depth=0, steps=steps, reason=reason)

    def _longest_pause(self) -> int:
        """Steps between two trials, so that these cost little enough: a power of two."""
        rows, times = self._estimator.num_drawing, self._estimator.times
        extra = times.of_pass(2 * rows) + times.of_drafting(1) - times.of_pass(rows)
        steps = extra / (SHARE * times.of_pass(rows))
        pause = 2 * FIRST_PAUSE
        while pause < min(steps, LONGEST_PAUSE):
            pause *= 2
        return pause
