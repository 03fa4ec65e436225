"""Least slack first: the request whose prompt must begin soonest, so that it meets its target."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from twostroke.core.request import Request
from twostroke.scheduling.policies.base import NoBoost, Rank
from twostroke.scheduling.policies.ranked import RankedPolicy
from twostroke.timing.step_times import PromptWork, StepTimes

# Seconds that a request without a target is given, so that it waits for no more than that behind
# those that have one.
PATIENCE = 10.0
# A request with less of its target left, as a share, than this is late: what is predicted is no
# better than that.
MARGIN = 0.1
# Of this many requests that enter, one is late already, if any is.
LATE_SHARE = 16
SPARE = 64  # entries of requests that have left, before they are looked for


class DeadlinePolicy:
    """Slack is the time left to the TTFT target, less what the prompt will take.

    All slacks shrink alike, so the order is that of the latest time to begin, which stays; it
    leaves a margin for what is not known of steps to come. What can no longer meet its target goes
    after what can: served first, it would make that late as well, and under overload all would be.
    One request in ``LATE_SHARE`` that enter is taken from those that are late, in the same order,
    so that each of them has its turn. One that was preempted is never late: its answer has begun.
    What is late after a long step can be in time again when steps are short.

    Args:
        times: What prompts take, and the time.
        num_cached: Prompt tokens of a waiting request that the prefix cache holds.
    """

    # Which request is next changes while time passes, without any arrival or end.
    ranks_change = True

    def __init__(
        self, times: StepTimes, num_cached: Callable[[Request], int] = lambda request: 0
    ) -> None:
        self.boost = NoBoost()
        self._times = times
        self._num_cached = num_cached
        self._latest_start: dict[str, float] = {}  # of those that wait or run
        self._on_time = RankedPolicy(self.rank)
        self._late = RankedPolicy(self.rank)
        self._is_late: set[str] = set()
        # Those that are late, the one first that could soonest be in time again; also some that
        # have left.
        self._soonest_back: list[tuple[float, float, Request]] = []
        self._num_admitted = 0
        self._now = 0.0

    def rank(self, request: Request) -> Rank:
        """The latest time to begin; of equal ones, in order of arrival."""
        start = self._latest_start.get(request.request_id)
        if start is None:
            start = self._latest_start[request.request_id] = self._find_latest_start(request)
        return (start, request.sequence_number)

    def push(self, request: Request) -> None:
        self._now = max(self._now, request.arrival_time)
        self._on_time.push(request)

    def peek(self) -> Request | None:
        self._set_late_aside()
        late, on_time = self._late.peek(), self._on_time.peek()
        if late is not None and self._num_admitted % LATE_SHARE == LATE_SHARE - 1:
            return late
        return late if on_time is None else on_time

    def pop(self) -> Request:
        request = self.peek()
        if request is None:
            raise IndexError("pop from an empty queue")
        self._num_admitted += 1
        self._take_out(request)
        return request

    def remove(self, request: Request) -> None:
        self._take_out(request)
        self._latest_start.pop(request.request_id, None)

    def finished(self, request: Request) -> None:
        self._latest_start.pop(request.request_id, None)

    def charge(self, request: Request, *, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Nothing to note: what was computed for it gives it no more time."""

    def __len__(self) -> int:
        return len(self._on_time) + len(self._late)

    def _find_latest_start(self, request: Request) -> float:
        target = PATIENCE if request.spec.ttft_target is None else request.spec.ttft_target
        start = self._num_cached(request)
        work = PromptWork.of(start, request.num_prompt_tokens - start)
        needed = self._times.prices.beside_steps(work) + MARGIN * target
        return request.received_time + target - needed

    def _set_late_aside(self) -> None:
        # Its prompt would be in the next step, whose end is its first token.
        now = max(self._now, self._times.now) + self._times.last_seconds
        self._take_back(now)
        while (request := self._on_time.peek()) is not None:
            if self.rank(request)[0] >= now or request.num_preemptions:
                return
            self._on_time.pop()
            self._is_late.add(request.request_id)
            self._late.push(request)
            start, number = self.rank(request)
            heappush(self._soonest_back, (-start, -number, request))

    def _take_back(self, now: float) -> None:
        """Take back the requests that would be in time after all, if they began ``now``."""
        back = self._soonest_back
        while back and (-back[0][0] >= now or back[0][2].request_id not in self._is_late):
            *_, request = heappop(back)
            if request.request_id in self._is_late:
                self._take_out(request)
                self._on_time.push(request)
        if len(back) > 2 * len(self._is_late) + SPARE:
            back[:] = [entry for entry in back if entry[2].request_id in self._is_late]
            heapify(back)

    def _take_out(self, request: Request) -> None:
        is_late = request.request_id in self._is_late
        self._is_late.discard(request.request_id)
        (self._late if is_late else self._on_time).remove(request)
