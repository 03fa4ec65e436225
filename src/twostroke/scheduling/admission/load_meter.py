"""What an engine says of itself after each step, for predictions: an observer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import Reason
from twostroke.observability.observer import ObservedStep
from twostroke.scheduling.admission.prediction import EngineLoad
from twostroke.scheduling.scheduler import Scheduler
from twostroke.timing.step_times import PromptWork, StepTimes

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
# What keeps a request waiting although the step has tokens left for it.
FULL = (Reason.MAX_NUM_SEQS, Reason.NO_FREE_BLOCK)
# Entries are counted over this many times the places: equally long answers end together, and over
# fewer entries the rate would depend on when one looks.
COUNTED_ENTRIES = 6
# What lengths of answers say counts as this many entries, as a share of the places.
EXPECTED_ENTRIES = 0.25
# Share of a new answer in their mean length.
LENGTH_WEIGHT = 0.05
# Share of a new step in the mean step.
STEP_WEIGHT = 0.05
# Entries take at most this many times what they would if each answer became as long as it may.
MOST = 2.0
# Share of a new request in the mean share of a tenant's prompts that the cache did not hold.
SHARE_WEIGHT = 0.1


class Left(NamedTuple):
    """One sample of a call that waits no more: it runs for the first time, or has ended unrun.

    Attributes:
        time: When, on the engine's clock.
    """

    call_id: str
    time: float
    ran: bool


class LoadMeter:
    """Measures the load after each step, and notes what has stopped waiting.

    Requests enter while others wait at a rate that depends on the length of answers, which nobody
    knows before; so it is counted, over the latest entries. Before there are enough of them, the
    mean length of answers that have ended, times the latest step's time, stands in. The seconds
    since the last entry, divided by the requests that run, are a lower bound, from which a slower
    rate is soon known. The upper bound is twice what it would be if each answer became as long as
    it may.

    Args:
        times: What the scheduler's steps take.

    Attributes:
        load: After the latest step.
        left: What has stopped waiting, in order.
    """

    def __init__(self, scheduler: Scheduler, times: StepTimes) -> None:
        self._scheduler = scheduler
        self._times = times
        self._waiting: dict[str, str] = {}  # calls of samples, until these have run
        self._uncached: dict[str, float] = {}
        self._max_running = scheduler.config.max_num_seqs
        self._kept = 1.0 - 1.0 / (COUNTED_ENTRIES * self._max_running)
        self._full_seconds = self._num_entries = 0.0  # decayed with each entry
        self._since_entry = 0.0
        self._mean_length: float | None = None
        self._mean_step = 0.0
        self._was_full = False
        self._last_time = 0.0
        self.left: deque[Left] = deque()
        self.load = self._measure(no_blocks=False)

    def leave(self, call_id: str, num_samples: int) -> None:
        """A call was let in, but could not be added."""
        self.left.extend([Left(call_id, 0.0, ran=False)] * num_samples)

    def on_add(self, requests: Sequence[Request]) -> None:
        self._waiting.update((request.request_id, request.spec.parent_id) for request in requests)

    def on_step(self, step: ObservedStep) -> None:
        plan = step.plan
        entered = [r for r in step.requests if r.first_scheduled_time == plan.time]
        reasons = {decision.reason for decision in plan.decisions}
        self._count_entries(len(entered), not reasons.isdisjoint(FULL), step.finished)
        for request in entered:
            if request.leader is None:  # others of its call share its prompt's blocks
                self._note_share(request)
        for request in step.ended:
            self._note_length(request)
        step_seconds = self._times.last_seconds
        weight = STEP_WEIGHT if self._mean_step else 1.0
        self._mean_step += weight * (step_seconds - self._mean_step)
        self._leave(step.requests, plan.time, ran=True)
        self.load = self._measure(no_blocks=Reason.NO_FREE_BLOCK in reasons)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._leave(requests, self._last_time, ran=False)
        if not self._waiting:  # what comes after a pause has not waited through it
            self._was_full, self._since_entry = False, 0.0
        self.load = self._measure(no_blocks=False)

    def close(self) -> None:
        """The load stays readable."""

    def _count_entries(self, num_entered: int, is_full: bool, now: float) -> None:
        seconds, self._last_time = now - self._last_time, now
        if self._was_full:  # before this step requests waited for a place
            self._since_entry += seconds
            if num_entered:
                kept = self._kept**num_entered
                self._full_seconds = kept * self._full_seconds + self._since_entry
                self._num_entries = kept * self._num_entries + num_entered
        if num_entered or not is_full:
            self._since_entry = 0.0
        self._was_full = is_full

    def _seconds_per_entry(self) -> float:
        places, seconds, entries = self._max_running, self._full_seconds, self._num_entries
        if self._mean_length is not None:
            expected = EXPECTED_ENTRIES * places
            seconds += expected * self._mean_length * self._times.last_seconds / places
            entries += expected
        counted = seconds / entries if entries else 0.0
        running = self._scheduler.running.values()
        if not running:
            return counted
        lower = self._since_entry / len(running)
        # Whatever was counted: places that were lent in between can look like waiting.
        longest = sum(r.max_total_tokens - r.num_prompt_tokens for r in running) / len(running)
        upper = MOST * longest * self._mean_step / len(running)
        return min(max(counted, lower), upper)

    def _note_length(self, request: Request) -> None:
        if request.spec.vector is None and request.finish_reason in COMPLETE:
            former = request.num_output_tokens if self._mean_length is None else self._mean_length
            change = request.num_output_tokens - former
            self._mean_length = former + LENGTH_WEIGHT * change

    def _note_share(self, request: Request) -> None:
        share = 1 - request.num_cached_tokens / max(1, request.num_prompt_tokens)
        former = self._uncached.get(request.tenant, 1.0)
        mean = former + SHARE_WEIGHT * (share - former)
        self._uncached = {**self._uncached, request.tenant: mean}  # loads keep the former one

    def _leave(self, requests: Iterable[Request], time: float, *, ran: bool) -> None:
        if self._waiting:
            for request in requests:
                call = self._waiting.pop(request.request_id, None)
                if call is not None:
                    self.left.append(Left(call, time, ran))

    def _measure(self, *, no_blocks: bool) -> EngineLoad:
        scheduler, times = self._scheduler, self._times
        backlog, rows = PromptWork(), 0
        by_tenant = Counter[str]()
        for request in scheduler.running.values():
            by_tenant[request.tenant] += 1
            missing = request.num_missing_tokens
            if missing == 1:
                rows += 1 + len(request.draft_token_ids)
            else:
                backlog = backlog.plus(PromptWork.of(request.num_computed_tokens, missing))
        places = self._max_running - len(scheduler.running)
        return EngineLoad(
            prices=times.prices,
            step_seconds=times.of_decode(rows),
            chunk=max(1, scheduler.budget.tokens - rows),
            backlog=backlog,
            num_free=0 if no_blocks else max(0, places),
            seconds_per_entry=self._seconds_per_entry(),
            under_way=times.last_seconds,
            running=by_tenant,
            uncached=self._uncached,
        )
