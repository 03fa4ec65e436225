"""Which waiting calls can no longer meet their TTFT targets: they are refused after all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from twostroke.core.output import RequestOutput
from twostroke.core.request import Request
from twostroke.observability.events import RefusedRequest
from twostroke.observability.observer import ObservedRun, ObservedStep
from twostroke.scheduling.step_times import PromptWork, StepTimes

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


class OverdueCalls:
    """An observer that keeps the calls of which no sample has run, until they are due.

    A prediction can be wrong: the engine became slower, or others went ahead. What then waits too
    long would get an answer that misses its target, and make those behind it miss theirs. Exempt is
    what nothing of its key waited before: such a call is let in whatever is predicted, so it is
    served; and a prompt among several of one call, whose others may run already.

    Args:
        times: What steps take.
        expected_work: What a prompt of a tenant will take, by its number of tokens.
        factor: How many times its target a call may take.
    """

    def __init__(
        self, times: StepTimes, expected_work: Callable[[str, int], PromptWork], factor: float
    ) -> None:
        self._times = times
        self._expected_work = expected_work
        self._factor = factor
        self._samples: dict[str, list[Request]] = {}  # of calls that wait
        self._num_waiting = Counter[str]()  # such calls, by tenant
        self._due: list[_Due] = []
        self._num_added = 0
        self._entry_step = 0.0  # what a step takes in which requests enter

    def on_add(self, requests: Sequence[Request]) -> None:
        first = requests[0]
        self._samples[first.parent_id] = list(requests)
        self._num_waiting[first.tenant] += 1
        target = first.ttft_target
        exempt = self._num_waiting[first.tenant] == 1 or first.is_part
        if target is not None and first.pooling is None and not exempt:
            work = self._expected_work(first.tenant, first.num_prompt_tokens)
            seconds = self._times.prices.seconds(work) + MARGIN * target
            due = first.received_time + self._factor * target - seconds
            self._num_added += 1
            others = len(self._samples) - 1
            heappush(self._due, _Due(due, self._num_added, first.parent_id, others))

    def on_step(self, step: ObservedStep) -> None:
        if step.plan.new_requests:
            self._entry_step += ENTRY_WEIGHT * (self._times.last_seconds - self._entry_step)
        self._forget(step.requests)

    def on_run(self, run: ObservedRun) -> None:
        self._forget(run.requests)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        self._forget(requests)

    def close(self) -> None:
        """Nothing is held."""

    def take(self, now: float) -> list[Overdue]:
        """What is overdue; the caller ends it."""
        taken: list[Overdue] = []
        while self._due and self._due[0].time < now + self._entry_step:
            due = heappop(self._due)
            if (samples := self._samples.get(due.call_id)) is not None:
                late = now + self._entry_step - due.time
                refused = self._refusal(samples[0], late, due.others)
                taken.append(Overdue(samples, refused))
        return taken

    def _refusal(self, request: Request, excess: float, others: int) -> RefusedRequest:
        target = request.ttft_target or 0.0
        return RefusedRequest(
            request_id=request.parent_id,
            tenant=request.tenant,
            predicted_ttft=self._factor * target + excess,
            ttft_target=target,
            factor=self._factor,
            ahead=others,
        )

    def _forget(self, requests: Iterable[Request]) -> None:
        if not self._samples:
            return
        for request in requests:
            if self._samples.pop(request.parent_id, None) is not None:
                self._num_waiting[request.tenant] -= 1
                if not self._num_waiting[request.tenant]:
                    del self._num_waiting[request.tenant]
