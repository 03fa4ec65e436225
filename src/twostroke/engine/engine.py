"""The engine: one loop that schedules, executes and updates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    EngineDeadError,
    InsufficientMemoryError,
    InvalidRequestError,
    RequestFailedError,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.core.step import StepPlan, StepResult
from twostroke.engine.clients.base import GenerationRequest
from twostroke.engine.executor import Executor, ExecutorInfo
from twostroke.engine.intake import Intake
from twostroke.engine.output_processor import OutputProcessor
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import build_step_event
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.profile import DETOKENISE, NO_PROFILE, REST, Profiler
from twostroke.observability.recorder import Recorder
from twostroke.scheduling.scheduler import Scheduler
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3


class Engine:
    """Runs requests on an executor, one step at a time. Single-threaded: whoever calls ``step``
    calls the rest.

    Args:
        executor: Runs the model, or simulates it; owned by the engine from here on.
        tokenizer: Makes text of tokens; without one, requests must set ``detokenize=False``.
        clock: Seconds, never falling; a virtual clock under simulation.
        served_model_name: The model's name in metrics; by default as in the configuration.
        profiler: Measures what a step does beside scheduling; whoever steps measures ``step`` as
            ``SCHEDULING``.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        served_model_name: str | None = None,
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        config = config or EngineConfig()
        info = executor.info
        self.config = config
        self.executor = executor
        self.tokenizer = tokenizer
        self.clock = clock
        self._profiler = profiler
        self.kv = KVCacheManager(
            info.num_blocks,
            info.block_size,
            model_id=info.model_id,
            enable_prefix_caching=config.cache.enable_prefix_caching,
        )
        self.scheduler = Scheduler(config.scheduler, self.kv)
        self.intake = Intake(info, tokenizer, config.model.seed)
        self.recorder = Recorder(config.observability.step_events, config.observability.record)
        self.metrics = EngineMetrics(served_model_name or config.model.model)
        self.metrics.observe_startup(info.load_seconds)
        self.metrics.describe_cache(
            info.num_blocks, info.block_size, prefix_caching=config.cache.enable_prefix_caching
        )
        self.dead: EngineDeadError | None = None
        self._texts = OutputProcessor(tokenizer) if tokenizer else None
        self._consecutive_failures = 0
        self._live: dict[
            str, list[Request]
        ] = {}  # by the client's id, until the last sample has ended
        self._ended: list[tuple[str, FinishReason]] = []
        self.last_stats = self.scheduler.stats()

    @property
    def info(self) -> ExecutorInfo:
        return self.executor.info

    def submit(self, call: GenerationRequest) -> None:
        """Validate and queue; raises as ``EngineClient.submit`` says."""
        self.add(self.prepare(call))

    def prepare(self, call: GenerationRequest) -> list[Request]:
        """Validate without queueing: safe on any thread while the loop runs."""
        self._check_alive()
        requests = self.intake.prepare(call, self.clock())
        self.scheduler.kv.check_fits(requests[0])
        return requests

    def add(self, requests: list[Request]) -> None:
        """Queue all samples of a prepared call, or none of them and raise."""
        self._check_alive()
        if (parent := requests[0].parent_id) in self._live:
            raise InvalidRequestError(f"request id {parent!r} is in use", param="request_id")
        self._live[parent] = requests
        for request in requests:
            self.scheduler.add(request)
            if self._texts:
                self._texts.add(request)
        self._refresh_stats()

    def step(self) -> list[RequestOutput]:
        now = self.clock()
        plan = self.scheduler.schedule(now)
        result = self._execute(plan)
        outputs = self.scheduler.update(plan, result, self.clock())
        self._write_texts(outputs)
        self._observe(plan, result)
        return outputs + self._give_up()

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def abort(self, request_id: str, error: TwostrokeError | None = None) -> list[RequestOutput]:
        """End all samples of a client's request; their last outputs say so. Unknown ids are
        ignored.

        Args:
            error: Why, where it is not the client who wants it.
        """
        samples = self._live.get(request_id, ())
        return self._end([r for r in samples if r.finish_reason is None], FinishReason.ABORT, error)

    def refuse(self, requests: list[Request], error: TwostrokeError) -> list[RequestOutput]:
        """The last outputs of requests that ``add`` did not take."""
        return [_last_output(request, FinishReason.ERROR, error) for request in requests]

    def die(self, error: EngineDeadError) -> list[RequestOutput]:
        """Fail for good: end every request with ``error`` and refuse all further ones with it."""
        self.dead = error
        return self._end(list(self.scheduler.requests.values()), FinishReason.ERROR, error)

    def close(self) -> list[RequestOutput]:
        """End what runs, with these last outputs, and free the model; further requests are
        refused.
        """
        error = ShuttingDownError("the engine has been closed", hint="try another server")
        outputs = self._end(list(self.scheduler.requests.values()), FinishReason.ABORT, error)
        self.dead = self.dead or EngineDeadError(
            "the engine has been closed", hint="make a new one"
        )
        self.recorder.close()
        self.executor.close()
        return outputs

    def _check_alive(self) -> None:
        # a fresh exception each time: raising one again and again would keep every caller's frames
        if self.dead:
            raise EngineDeadError(self.dead.message, hint=self.dead.hint) from self.dead

    def _execute(self, plan: StepPlan) -> StepResult:
        """Run the plan; a pass that raises fails every request in it, with the cause."""
        started = self.clock()
        try:
            with self._profiler.measure(REST):
                result = self.executor.execute(plan)
            self._consecutive_failures = 0
        except Exception as cause:
            logger.exception("step %d failed with %d requests", plan.step, len(plan.scheduled))
            failure = f"the forward pass failed: {type(cause).__name__}: {cause}"
            result = StepResult(failure=failure, duration=self.clock() - started)
            for request_id in plan.scheduled:
                result.errors[request_id] = error = RequestFailedError(failure)
                error.__cause__ = cause
            # Too little memory for one batch is that batch's fault; any other failure in a row may
            # be the device's.
            self._consecutive_failures += not isinstance(cause, InsufficientMemoryError)
        result.timings["schedule"] = started - plan.time
        return result

    def _write_texts(self, outputs: list[RequestOutput]) -> None:
        """Add the texts, and end what a stop string ended."""
        if self._texts is None:
            return
        with self._profiler.measure(DETOKENISE):
            for output in outputs:
                if stopped := self._texts.process(output):
                    self.scheduler.finish(stopped.request_id, FinishReason.STOP, self.clock())
                    # It may have ended by length with the same token.
                    stopped.finish_reason = FinishReason.STOP

    def _give_up(self) -> list[RequestOutput]:
        """After too many failures in a row, end everything."""
        if self._consecutive_failures < MAX_CONSECUTIVE_FAILURES:
            return []
        failures = f"{self._consecutive_failures} steps in a row failed"
        return self.die(EngineDeadError(failures, hint="see the log; restart the server"))

    def _end(
        self, requests: list[Request], reason: FinishReason, error: TwostrokeError | None = None
    ) -> list[RequestOutput]:
        """End requests between two steps; the next step's event tells of it."""
        now, outputs = self.clock(), []
        for request in requests:
            self.scheduler.finish(request.request_id, reason, now, error=error)
            outputs.append(_last_output(request, reason, error))
            if self._texts:
                self._texts.process(outputs[-1])
            self.metrics.observe_finished(request, now)
            self._ended.append((request.request_id, reason))
            self._forget(request)
        self._refresh_stats()
        return outputs

    def _forget(self, request: Request) -> None:
        samples = self._live.get(request.parent_id)
        if samples is not None and all(sample.finish_reason for sample in samples):
            del self._live[request.parent_id]
            self.metrics.observe_samples(samples)

    def _refresh_stats(self) -> None:
        self.last_stats = self.scheduler.stats()
        self.metrics.observe_stats(self.last_stats)

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        """Record what happened. Nothing here changes what will."""
        with self._profiler.measure(REST):
            self._record(plan, result)

    def _record(self, plan: StepPlan, result: StepResult) -> None:
        now, previous = self.clock(), self.last_stats
        ended, self._ended = self._ended, []
        new_tokens = result.token_ids
        self.metrics.observe_tokens(
            [
                (item.request, len(new_tokens.get(request_id, ())))
                for request_id, item in plan.scheduled.items()
            ],
            now,
        )
        for request_id, item in plan.scheduled.items():
            if reason := item.request.finish_reason:
                ended.append((request_id, reason))
                self.metrics.observe_finished(item.request, now)
                self._forget(item.request)
        self._refresh_stats()
        event = build_step_event(
            plan,
            result,
            started=plan.time,
            finished=now,
            stats=self.last_stats,
            previous=previous,
            token_budget=self.config.scheduler.max_num_batched_tokens,
            finished_requests=ended,
        )
        self.recorder.add(event)
        self.metrics.observe_step(event)


def _last_output(
    request: Request, reason: FinishReason, error: TwostrokeError | None
) -> RequestOutput:
    return RequestOutput(
        request_id=request.parent_id,
        index=request.index,
        token_ids=[],
        num_prompt_tokens=request.num_prompt_tokens,
        num_cached_tokens=request.num_cached_tokens,
        finish_reason=reason,
        error=error,
        num_used_prompt_tokens=request.num_used_prompt_tokens,
    )
