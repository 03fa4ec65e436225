"""An engine with what serving needs around the loop: validation, text, metrics, a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InvalidRequestError,
    ShuttingDownError,
)
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.engine.engine import Engine
from twostroke.engine.executor import Executor, ExecutorInfo
from twostroke.engine.intake import Intake
from twostroke.engine.messages import AddRequest, GenerationRequest, make_requests
from twostroke.engine.text_writer import TextWriter
from twostroke.kv_cache.manager import KVCacheManager
from twostroke.observability.events import SchedulerStats
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.observer import Observer
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.observability.recorder import Recorder
from twostroke.scheduling.policies.choose import choose_policy
from twostroke.scheduling.scheduler import Scheduler
from twostroke.scheduling.stats import read_stats
from twostroke.text.tokenizer import Tokenizer


class LLMEngine:
    """Takes calls and gives outputs with text. One thread calls everything but ``prepare``.

    Args:
        executor: Runs the model, or simulates it; owned by the engine from here on.
        tokenizer: Makes text of tokens; without one, requests must set ``detokenize=False``.
        clock: Seconds, never falling; a virtual clock under simulation.
        served_model_name: The model's name in metrics; by default as in the configuration.
        observers: More of them, behind text, metrics and recorder.
        profiler: Divides the time of a step into components; see ``Engine``.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None = None,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        served_model_name: str | None = None,
        observers: Sequence[Observer] = (),
        profiler: Profiler = NO_PROFILE,
    ) -> None:
        self.config = config = config or EngineConfig()
        self.tokenizer = tokenizer
        self.clock = clock
        self.executor = executor
        self.scheduler = make_scheduler(executor.info, config)
        self.intake = Intake(executor.info, tokenizer, config.model.seed)
        self.recorder = Recorder(config.observability.step_events, config.observability.record)
        self.metrics = EngineMetrics(
            served_model_name or config.model.model, partial(read_stats, self.scheduler)
        )
        self.metrics.observe_startup(executor.info.load_seconds)
        self.metrics.describe_cache(
            executor.info.num_blocks,
            executor.info.block_size,
            prefix_caching=config.cache.enable_prefix_caching,
        )
        watching: list[Observer] = [self.metrics, self.recorder, *observers]
        if tokenizer:
            watching.insert(0, TextWriter(tokenizer, self._stop, profiler))
        self.loop = Engine(self.scheduler, executor, watching, clock=clock, profiler=profiler)
        self._samples: dict[str, list[Request]] = {}  # by the client's id, until the last has ended

    @property
    def info(self) -> ExecutorInfo:
        return self.executor.info

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine has failed for good, if it has."""
        return self.loop.dead

    @property
    def last_stats(self) -> SchedulerStats:
        """The scheduler's state after the latest step, arrival or abort; safe on any thread."""
        return self.metrics.stats

    def submit(self, call: GenerationRequest) -> None:
        """Validate and queue; raises as ``EngineClient.submit`` says."""
        self.add(self.prepare(call))

    def prepare(self, call: GenerationRequest) -> AddRequest:
        """Validate without queueing: safe on any thread while the loop runs."""
        self.loop.check_alive()
        return self.intake.prepare(call, self.clock())

    def add(self, message: AddRequest) -> None:
        """Queue all samples of a validated call, or none of them and raise."""
        if message.request_id in self._samples:
            raise InvalidRequestError(
                f"request id {message.request_id!r} is in use", param="request_id"
            )
        requests = make_requests(message)
        self.loop.add(requests)
        self._samples[message.request_id] = requests

    def step(self) -> list[RequestOutput]:
        return self._forget_ended(self.loop.step())

    def has_work(self) -> bool:
        return self.loop.has_work()

    def abort(self, request_id: str, error: ErrorMessage | None = None) -> list[RequestOutput]:
        """End all samples of a call; their last outputs say so. Unknown ids are ignored.

        Args:
            error: Why, where it is not the client who wants it.
        """
        samples = self._samples.get(request_id, ())
        running = [sample for sample in samples if sample.finish_reason is None]
        return self._forget_ended(self.loop.end(running, FinishReason.ABORT, error))

    def die(self, error: EngineDeadError) -> list[RequestOutput]:
        """Fail for good: end every request with ``error`` and refuse all further ones with it."""
        return self._forget_ended(self.loop.die(error))

    def close(self) -> list[RequestOutput]:
        """End what runs, with these last outputs, and free the model; refuse further requests."""
        error = ShuttingDownError("the engine has been closed", hint="try another server")
        running = self.scheduler.requests.values()
        outputs = self.loop.end(running, FinishReason.ABORT, ErrorMessage.of(error))
        self.loop.close()
        return self._forget_ended(outputs)

    def _stop(self, request: Request, num_dropped: int) -> None:
        """A stop string ended a request; its last ``num_dropped`` tokens are none of its answer."""
        request.drop_tokens(num_dropped)
        self.scheduler.finish(request.request_id, FinishReason.STOP, self.clock())
        request.finish_reason = FinishReason.STOP  # its length may have ended it in the same step

    def _forget_ended(self, outputs: list[RequestOutput]) -> list[RequestOutput]:
        for output in outputs:
            if output.finish_reason is not None:
                samples = self._samples.get(output.request_id, ())
                if samples and all(sample.finish_reason for sample in samples):
                    del self._samples[output.request_id]
        return outputs


def make_scheduler(info: ExecutorInfo, config: EngineConfig) -> Scheduler:
    """Scheduler and KV manager for an executor, as configured."""
    kv = KVCacheManager(
        info.num_blocks,
        info.block_size,
        model_id=info.model_id,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return Scheduler(config.scheduler, kv, choose_policy(config.scheduler))
