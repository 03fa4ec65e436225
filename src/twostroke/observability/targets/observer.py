"""The observer that holds an engine to its targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from twostroke.core.errors import PredictedLateError
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.core.targets import EVERY_KEY, STATES, Target, TargetMetric
from twostroke.observability.events import SchedulerStats
from twostroke.observability.observer import ObservedStep
from twostroke.observability.targets.watch import TargetReport, TargetWatch

COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
REFUSED = PredictedLateError.__name__


class TargetObserver:
    """Counts requests and states towards targets.

    A first token counts towards ``ttft`` when it comes, all else when a request ends. One that
    leaves without a first token counts as a miss if it had waited longer than the limit. Answers
    that are complete count towards ``tpot`` and ``e2el``, failures and complete answers towards
    ``errors``. What is refused counts towards none. ``kv`` and ``queue`` hold from one step to the
    next, and count by time.

    Args:
        targets: Those for other models than ``model_name`` are left out.
        clock: The engine's.
        read_stats: The scheduler's state after what was observed last.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        model_name: str,
        clock: Callable[[], float],
        read_stats: Callable[[], SchedulerStats],
    ) -> None:
        self._clock = clock
        self._read_stats = read_stats
        self._targets = [target for target in targets if target.model in ("", model_name)]
        self._for_every_key = [target for target in self._targets if target.key == EVERY_KEY]
        self.begin_again()

    def begin_again(self) -> None:
        """Forget all that was counted: from here on the clock may be another one."""
        self._watches: dict[str, list[TargetWatch]] = {}  # by key
        for target in self._targets:
            if target.key != EVERY_KEY:
                self._watches.setdefault(target.key, []).append(TargetWatch(target))
        self._states = [w for w in self._watches.get("", ()) if w.target.metric in STATES]
        self._latest = 0.0
        # Requests with a first token. One step may begin at the very time at which another ended.
        self._started: set[str] = set()

    def on_add(self, requests: Sequence[Request]) -> None:
        """The next step shows whether they have to wait."""

    def on_step(self, step: ObservedStep) -> None:
        self._count(step.requests, step.began, step.finished)
        if self._states:
            self._hold_stats(step.stats, step.finished)

    def on_end(self, requests: Sequence[Request], outputs: Sequence[RequestOutput]) -> None:
        now = self._clock()
        for request, output in zip(requests, outputs):
            self._started.discard(request.request_id)
            if output.error is not None and output.error.kind == REFUSED:
                continue
            if request.first_token_time is None:
                self._observe("ttft", request, now - request.received_time, now, if_missed=True)
            if output.error is not None:
                self._observe("errors", request, 1.0, now)
        if self._states:
            self._hold_stats(self._read_stats(), now)

    def close(self) -> None:
        """The reports stay readable."""

    @property
    def watched(self) -> list[str]:
        """The targets as they can be given to ``--target``."""
        return [target.text for target in self._targets]

    def report(self) -> list[TargetReport]:
        """Each target at this moment; those for every key once for each key that has sent one."""
        now = max(self._clock(), self._latest)
        self._latest = now
        return [watch.report(now) for key in sorted(self._watches) for watch in self._watches[key]]

    def _count(
        self, requests: Sequence[Request], began: float, first: float, last: float | None = None
    ) -> None:
        """Count the requests of a step, or of a run whose first step ended at ``first``."""
        last = first if last is None else last
        started = [
            request
            for request in requests
            if (time := request.first_token_time) is not None
            and time >= began
            and request.request_id not in self._started
        ]
        ended = [request for request in requests if request.finish_reason is not None]
        if not started and not ended:
            return
        for request in started:
            self._started.add(request.request_id)
            self._observe("ttft", request, first - request.received_time, first)
        for request in ended:
            self._started.discard(request.request_id)
            self._finish(request, last)

    def _finish(self, request: Request, now: float) -> None:
        if request.finish_reason in COMPLETE:
            self._observe("errors", request, 0.0, now)
            self._observe("e2el", request, now - request.received_time, now)
            if request.num_output_tokens > 1 and request.first_token_time is not None:
                gap = (now - request.first_token_time) / (request.num_output_tokens - 1)
                self._observe("tpot", request, gap, now)
        elif request.finish_reason is FinishReason.ERROR:
            self._observe("errors", request, 1.0, now)

    def _observe(
        self,
        metric: TargetMetric,
        request: Request,
        value: float,
        now: float,
        *,
        if_missed: bool = False,
    ) -> None:
        now = self._latest = max(now, self._latest)
        for watch in self._watches_of(request.tenant):
            if watch.target.metric == metric and not (if_missed and value <= watch.target.limit):
                watch.observe(value, now, request)

    def _watches_of(self, tenant: str) -> list[TargetWatch]:
        """The watches for all requests, and those for this key."""
        everyone = self._watches.get("", [])
        if not tenant:
            return everyone
        if self._for_every_key:
            self._follow(tenant)
        return everyone + self._watches.get(tenant, [])

    def _follow(self, tenant: str) -> None:
        """Watch a key; what was set for it by name goes before what holds for every key."""
        watches = self._watches.setdefault(tenant, [])
        names = {watch.target.name for watch in watches}
        for target in self._for_every_key:
            if target.name not in names:
                watches.append(TargetWatch(target.for_key(tenant)))

    def _hold_stats(self, stats: SchedulerStats, now: float) -> None:
        self._hold(1 - stats.free_blocks / max(1, stats.total_blocks), stats.num_waiting, now)

    def _hold(self, used: float, num_waiting: int, now: float) -> None:
        """Note that from now on this share of the blocks is used, and this many requests wait."""
        self._latest = max(now, self._latest)
        for watch in self._states:
            watch.hold(used if watch.target.metric == "kv" else num_waiting, now)
