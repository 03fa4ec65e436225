"""The engine: one loop that schedules, executes and updates."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InsufficientMemoryError,
)
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason, Request
from twostroke.core.sampling_params import HostWait
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.executor import Executor
from twostroke.engine.failed_step import failed_result
from twostroke.observability.events import RefusedRequest
from twostroke.observability.observer import ObservedStep, Observer
from twostroke.observability.profile import NO_PROFILE, REST, Profiler
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.stats import read_stats

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3


@dataclass(slots=True)
class _Launched:
    """A step whose pass runs.

    Attributes:
        requests: Those of the plan, in its order.
        began: When it was launched, on the engine's clock.
        prefix_queries: Since the start, as ``prefix_hits``.
        error: What the launch raised, if it did.
    """

    plan: StepPlan
    requests: list[Request]
    began: float
    prefix_queries: int
    prefix_hits: int
    error: Exception | None = None


class Engine:
    """Runs requests on an executor, one step at a time. One thread calls everything.

    Args:
        scheduler: Plans the steps, and keeps the requests.
        executor: Runs the model, or simulates it; owned by the engine from here on.
        observers: See each step, in this order.
        clock: Seconds, never falling; a virtual clock under simulation.
        profiler: Measures what a step does beside scheduling; a caller that wants a profile
            measures ``step`` as ``SCHEDULING``.

    Attributes:
        dead: Why the engine has failed for good, if it has; then it takes no more requests.
        runs_ahead: Whether steps are launched ahead; may be turned off between two of them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        observers: Sequence[Observer] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self._profiler = profiler
        self.scheduler = scheduler
        self.executor = executor
        self.observers = observers
        self.clock = clock
        self.dead: EngineDeadError | None = None
        self._launched: deque[_Launched] = deque()  # two at most: one runs, and one waits for it
        self.runs_ahead = executor.info.runs_ahead
        self._last_end = 0.0  # of a step
        self._consecutive_failures = 0
        self._fatal: EngineDeadError | None = None  # raised by the executor
        self._ended_between_steps: list[Request] = []
        self._refused: list[RefusedRequest] = []
        self._prefix_queries = self._prefix_hits = 0  # up to the last step

    def add(self, requests: Sequence[Request]) -> None:
        """Queue all samples of one call."""
        self.check_alive()
        for request in requests:
            self.scheduler.add(request)
        for observer in self.observers:
            observer.on_add(requests)

    def step(self) -> list[RequestOutput]:
        if self._may_plan():
            plan = self.scheduler.schedule(self.clock())
            self._launch(plan)
            if self._may_run_ahead():  # another is launched beside it
                return []
        launched = self._launched.popleft()
        result = self._collect(launched)
        outputs = self.scheduler.update(launched.plan, result, self.clock())
        self._observe(launched, result, outputs)
        return outputs + self._give_up()

    def has_work(self) -> bool:
        return bool(self._launched) or self.scheduler.has_work()

    def end(
        self, requests: Iterable[Request], reason: FinishReason, error: ErrorMessage | None = None
    ) -> list[RequestOutput]:
        """End requests between two steps. Returns their last outputs.

        Args:
            reason: With ``ERROR`` their keys and values may be wrong, and are not found again.
            error: Why, where it is not the client who wants it.
        """
        requests, now = list(requests), self.clock()
        discard = reason is FinishReason.ERROR
        for request in requests:
            self.scheduler.finish(request.request_id, reason, now, discard=discard)
        outputs = [make_output(request, [], reason, error) for request in requests]
        self._ended_between_steps += requests
        for observer in self.observers:
            observer.on_end(requests, outputs)
        return outputs

    def note_refusal(self, refused: RefusedRequest) -> None:
        """Tell of a call that was refused, with the next step."""
        self._refused.append(refused)

    def forget_untold(self) -> None:
        """Drop what steps to come would tell of the time before: all requests have ended."""
        while self._launched:
            launched = self._launched.popleft()
            self.scheduler.update(launched.plan, self._collect(launched), self.clock())
        self._ended_between_steps, self._refused, self._last_end = [], [], 0.0

    def die(self, error: EngineDeadError) -> list[RequestOutput]:
        """Fail for good: end every request with ``error`` and refuse all further ones with it."""
        self.dead = error
        requests = self.scheduler.requests.values()
        return self.end(requests, FinishReason.ERROR, ErrorMessage.of(error))

    def close(self) -> None:
        """Free the model and close the observers; further requests are refused."""
        closed = EngineDeadError("the engine has been closed", hint="make a new one")
        self.dead = self.dead or closed
        for observer in self.observers:
            observer.close()
        self._launched.clear()
        self.executor.close()

    def check_alive(self) -> None:
        """Raise EngineDeadError if the engine has failed or been closed."""
        if self.dead:  # a fresh exception: raised again and again, one would keep all frames
            raise EngineDeadError(self.dead.message, hint=self.dead.hint) from self.dead

    def _may_plan(self) -> bool:
        """Whether the next step can be planned: none runs, or requests go on after that one.

        The result of a step that runs is taken for granted, as far as plans depend on it.
        """
        if not self._launched:
            return True
        return self._may_run_ahead() and self.scheduler.assume(self._launched[-1].plan)

    def _may_run_ahead(self) -> bool:
        """Whether a step may be launched beside the one that was: none of its result matters."""
        if not self.runs_ahead or len(self._launched) > 1:
            return False
        return self._launched[-1].plan.host_wait is None and self._launched[-1].error is None

    def _launch(self, plan: StepPlan) -> None:
        kv, requests = self.scheduler.kv, self.scheduler.requests_in(plan)
        if self.runs_ahead and plan.host_wait is None:
            drafts = HostWait.DRAFTS if self.scheduler.depth.guesses else None
            plan.host_wait = drafts or next(filter(None, (r.host_wait for r in requests)), None)
        launched = _Launched(plan, requests, self.clock(), kv.prefix_queries, kv.prefix_hits)
        self._launched.append(launched)
        try:
            with self._profiler.measure(REST):
                self.executor.launch(plan)
        except MemoryError:  # the executor's own shortage is an InsufficientMemoryError
            raise
        except Exception as cause:
            launched.error = cause

    def _collect(self, launched: _Launched) -> StepResult:
        """What a step gave; a pass that raises fails every request in it, with the cause.

        Requests that ended while it ran are taken out of it: nothing of theirs counts.
        """
        plan, requests = launched.plan, launched.requests
        launched.requests = [each for each in requests if each.finish_reason is None]
        if len(launched.requests) < len(requests):
            plan.keep(launched.requests)
        try:
            if launched.error is not None:
                raise launched.error
            with self._profiler.measure(REST):
                result = self.executor.collect()
            self._consecutive_failures = 0
        except MemoryError:
            raise
        except Exception as cause:
            logger.exception("step %d failed with %d requests", plan.step, len(plan.scheduled))
            self._fatal = cause if isinstance(cause, EngineDeadError) else None
            result = failed_result(plan, cause, self.clock() - launched.began)
            # Too little memory is the batch's fault; other failures may be the device's.
            self._consecutive_failures += not isinstance(cause, InsufficientMemoryError)
        result.timings["schedule"] = launched.began - plan.time
        return result

    def _observe(
        self, launched: _Launched, result: StepResult, outputs: list[RequestOutput]
    ) -> None:
        """Show the step to the observers. Text comes first: stop strings may end requests."""
        plan, kv = launched.plan, self.scheduler.kv
        step = ObservedStep(
            plan,
            result,
            launched.requests,
            outputs,
            self.clock,
            partial(read_stats, self.scheduler),
            token_budget=plan.token_budget,
            prefix_queries=launched.prefix_queries - self._prefix_queries,
            prefix_hits=launched.prefix_hits - self._prefix_hits,
            previous_end=self._last_end,
            ended_before=self._ended_between_steps,
            refused=self._refused,
            tells_tables=not kv.groups.has_windows,
        )
        self._prefix_queries, self._prefix_hits = launched.prefix_queries, launched.prefix_hits
        self._ended_between_steps, self._refused = [], []
        with self._profiler.measure(REST):
            for observer in self.observers:
                observer.on_step(step)
        self._last_end = step.finished

    def _give_up(self) -> list[RequestOutput]:
        """After too many failures in a row, or one that is for good, end everything."""
        few = self._fatal is None and self._consecutive_failures < MAX_CONSECUTIVE_FAILURES
        if few or self.dead is not None:
            return []
        failures = f"{self._consecutive_failures} steps in a row failed"
        hint = "see the log; restart the server"
        return self.die(self._fatal or EngineDeadError(failures, hint=hint))
