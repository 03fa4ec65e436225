"""Which waiting calls can no longer meet their TTFT targets: they are refused after all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.events import RefusedRequest
from twostroke.observability.observer import ObservedStep
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.timing.step_times import StepTimes

# Share of its target that a call should have left when it begins: steps differ.
MARGIN = 0.1
# Share of a new step in the mean of those in which requests enter.
ENTRY_WEIGHT = 0.2


class Overdue(NamedTuple):
    """All samples of a call, and what step events tell of it."""

    samples: Sequence[Request]
    refused: RefusedRequest


class _Due(NamedTuple):
    """When a call must begin to run; in order of that, then of arrival."""

    time: float
    number: int
    call_id: str
    others: int  # calls that waited when it came
    step: int  # how many there had been then


class OverdueCalls:
    """An observer that keeps the calls of which no sample has run, until they are due.

    A prediction can be wrong: the engine became slower, or others went ahead. What then waits too
    long would get an answer that misses its target, and make those behind it miss theirs. A call
    must have waited through a step for that: if there is a place, it runs, however long it takes.

    Exempt is a call of a key of which nothing waited, where other keys have requests: it is let in
    whatever is predicted, so that none of them can shut it out; and a prompt among several of one
    call, whose others may run already.

    Args:
        times: What steps take.
        meter: What the engine's prompts take, and for which tenants it runs requests.
        factor: How many times its target a call may take.
    """

    def __init__(self, times: StepTimes, meter: LoadMeter, factor: float) -> None:
        self._times = times
        self._meter = meter
        self._factor = factor
        self._samples: dict[str, list[Request]] = {}  # of calls that wait
        self._num_waiting = Counter[str]()  # such calls, by tenant
        self._due: list[_Due] = []
        self._num_added = self._num_steps = 0
        self._entry_step = 0.0  # what a step takes in which requests enter

    def on_add(self, requests: Sequence[Request]) -> None:
        first = requests[0]
        self._samples[first.spec.parent_id] = list(requests)
        self._num_waiting[first.tenant] += 1
        target = first.spec.ttft_target
        exempt = (
            first.spec.is_part
            or any(request.num_output_tokens for request in requests)  # begun by another engine
            or (self._num_waiting[first.tenant] == 1 and self._others_are_here(first.tenant))
        )
        if target is not None and first.spec.vector is None and not exempt:
            work = self._meter.load.expected_work(first.tenant, first.num_prompt_tokens)
            seconds = self._times.prices.seconds(work) + MARGIN * target
            due = first.received_time + self._factor * target - seconds
            self._num_added += 1
            others = len(self._samples) - 1
            entry = _Due(due, self._num_added, first.spec.parent_id, others, self._num_steps)
            heappush(self._due, entry)

    def on_step(self, step: ObservedStep) -> None:
        if step.plan.new_requests:
            self._entry_step += ENTRY_WEIGHT * (self._times.last_seconds - self._entry_step)
        self._num_steps += 1
        self._forget(step.requests)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._forget(requests)

    def close(self) -> None:
        """Nothing is held."""

    def take(self, now: float) -> list[Overdue]:
        """What is overdue; the caller ends it."""
        taken: list[Overdue] = []
        new: list[_Due] = []
        while self._due and self._due[0].time < now + self._entry_step:
            due = heappop(self._due)
            if due.step == self._num_steps:
                new.append(due)
            elif (samples := self._samples.get(due.call_id)) is not None:
                late = now + self._entry_step - due.time
                refused = self._refusal(samples[0], late, due.others)
                taken.append(Overdue(samples, refused))
        for due in new:
            heappush(self._due, due)
        return taken

    def _refusal(self, request: Request, excess: float, others: int) -> RefusedRequest:
        target = request.spec.ttft_target or 0.0
        return RefusedRequest(
            request_id=request.spec.parent_id,
            tenant=request.tenant,
            predicted_ttft=self._factor * target + excess,
            ttft_target=target,
            factor=self._factor,
            ahead=others,
        )

    def _others_are_here(self, tenant: str) -> bool:
        return bool({*self._num_waiting, *self._meter.load.running} - {tenant})

    def _forget(self, requests: Iterable[Request]) -> None:
        if not self._samples:
            return
        for request in requests:
            if self._samples.pop(request.spec.parent_id, None) is not None:
                self._num_waiting[request.tenant] -= 1
                if not self._num_waiting[request.tenant]:
                    del self._num_waiting[request.tenant]
