"""An engine with what serving needs around the loop: validation, text, metrics, a recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import EngineConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InvalidRequestError,
    ShuttingDownError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.cache_admin import CacheAdmin
from twostroke.engine.check_states import check_states
from twostroke.engine.engine import Engine
from twostroke.engine.executor import Executor, ExecutorInfo
from twostroke.engine.inspection import EndedRequests, take_snapshot
from twostroke.engine.intake import Intake
from twostroke.engine.make_kv import make_kv
from twostroke.engine.messages import AddRequest, AwaitRequest, make_requests
from twostroke.engine.refuse_overdue import refuse_overdue
from twostroke.engine.text_writer import TextWriter
from twostroke.engine.waiting_samples import WaitingSamples
from twostroke.kv_cache.prefix_mirror import IndexLog, cached_keys
from twostroke.observability.events import SchedulerStats
from twostroke.observability.metrics import EngineMetrics
from twostroke.observability.observer import Observer
from twostroke.observability.profile import NO_PROFILE, Profiler
from twostroke.observability.recorder import Recorder
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.targets.observer import TargetObserver
from twostroke.observability.tracing.stations import CallStations
from twostroke.scheduling.admission.load_meter import LoadMeter
from twostroke.scheduling.admission.overdue import OverdueCalls
from twostroke.scheduling.admission.ttft_targets import TTFTTargets
from twostroke.scheduling.assemble import MadeScheduler, assemble_scheduler
from twostroke.scheduling.awaited_prompts import ticket_of
from twostroke.scheduling.stats import read_stats
from twostroke.text.tokenizer import Tokenizer


class LLMEngine:
    """Takes calls and gives outputs with text. One thread calls everything.

    Args:
        executor: Runs the model, or simulates it; owned by the engine from here on.
        tokenizer: Makes text of tokens; without one, requests must set ``detokenize=False``.
        clock: Seconds, never falling; a virtual clock under simulation.
        served_model_name: The model's name in metrics; by default as in the configuration.
        observers: More of them, after text, metrics and recorder.
        profiler: Divides the time of a step into components; see ``Engine``.
        grammars: Shared with an executor in this process; made of the tokenizer by default.
        take_calls: Gives a recording the calls over HTTP; see ``Recorder``.
        adapters: The LoRA adapters that the executor has; by default none.
        rank: Which of the model's engines this is, in metrics; a worker's is its address.
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
        grammars: GrammarCompiler | None = None,
        take_calls: Callable[[], Sequence[CallStations]] | None = None,
        adapters: Adapters | None = None,
        rank: int | str = 0,
    ) -> None:
        self.config = config = config or EngineConfig()
        self.tokenizer, self.clock, self.executor = tokenizer, clock, executor
        info = executor.info
        made = make_scheduler(info, config)
        self.scheduler, self._awaited = made.scheduler, made.tiers.awaited
        name = served_model_name or config.model.model
        targets = config.observability.targets()
        self.ttft_targets = TTFTTargets(targets, name)
        if grammars is None and tokenizer is not None:
            grammars = GrammarCompiler(tokenizer)
        self.grammars = grammars
        self.adapters = adapters or Adapters()
        seed = config.model.seed
        self.intake = Intake(info, tokenizer, seed, grammars, self.ttft_targets, self.adapters)
        watched = config.observability
        self.recorder = Recorder(watched.step_events, watched.record, take_calls)
        self.metrics = EngineMetrics(name, partial(read_stats, self.scheduler), rank)
        self.metrics.observe_startup(info.load_seconds)
        self.metrics.describe_cache(info.num_blocks, info.block_size, config.cache, info.kv_groups)
        publishes = config.tiers.kv_events
        directory = made.tiers.directory
        self.cache = CacheAdmin(self.scheduler.kv, directory, info, clock, publishes=publishes)
        self.waiting_samples = WaitingSamples()
        self.ended_requests = EndedRequests(info.block_size, info.kv_groups.count)
        own = (self.waiting_samples, self.metrics, self.recorder, self.ended_requests)
        watching: list[Observer] = [*own, *observers]
        if self.cache.events is not None:
            watching.append(self.cache.events)
        self.targets: TargetObserver | None = None
        if targets:
            self.targets = TargetObserver(targets, name, clock, lambda: self.metrics.stats)
            self.metrics.show_targets(self.targets)
            watching.append(self.targets)
        self.meter: LoadMeter | None = None
        self._overdue: OverdueCalls | None = None
        if self.scheduler.config.admission == "predicted":
            watching += self._predict(made)
        if tokenizer:
            watching.insert(0, TextWriter(tokenizer, self._stop, profiler))
        self.loop = Engine(self.scheduler, executor, watching, clock=clock, profiler=profiler)
        self._samples: dict[str, list[Request]] = {}  # by the client's id, until the last has ended

    def _predict(self, made: MadeScheduler) -> list[Observer]:
        """Keep what early refusal needs to know; returns those who watch for it."""
        self.meter = LoadMeter(self.scheduler, made.times)
        factor = self.scheduler.config.admission_factor
        self._overdue = OverdueCalls(made.times, self.meter, factor)
        return [self.meter, self._overdue]

    @cached_property
    def index_log(self) -> IndexLog:
        """What the prefix cache has got and lost; kept from the first use on, since it grows until
        it is taken.
        """
        log, kv = IndexLog(), self.scheduler.kv
        kv.watch(log)
        kv.states.watch(log)
        if cached := cached_keys(kv.pool, kv.states.pool):
            log.begin_again(cached)
        return log

    @property
    def info(self) -> ExecutorInfo:
        return self.executor.info

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine has failed for good, if it has."""
        return self.loop.dead

    @property
    def last_stats(self) -> SchedulerStats:
        """The scheduler's state after the latest step, arrival or abort."""
        return self.metrics.stats

    def submit(self, call: GenerationRequest) -> None:
        """Validate and queue; raises as ``EngineClient.submit`` says."""
        self.add(self.prepare(call))

    def prepare(self, call: GenerationRequest) -> AddRequest:
        """Validate without queueing."""
        self.loop.check_alive()
        return self.intake.prepare(call, self.clock())

    def add(self, message: AddRequest) -> None:
        """Queue all samples of a validated call, or none of them and raise."""
        if message.request_id in self._samples:
            raise InvalidRequestError(
                f"request id {message.request_id!r} is in use", param="request_id"
            )
        self.adapters.use(message.request.adapter, self.adapters_in_use())
        requests = make_requests(message)
        self.loop.add(requests)
        self._samples[message.request_id] = requests
        self._awaited.forget(message.request_id)

    def expect(self, message: AwaitRequest) -> None:
        """Load, by and by, what another engine has computed of a prompt that is to come here."""
        call_id, spec = message.request_id, message.request
        stand_in = None
        if spec is not None:
            stand_in = Request(replace(spec, request_id=ticket_of(call_id)))
        self._awaited.note(call_id, stand_in, message.offer)

    def adapters_in_use(self) -> set[str]:
        """The adapters of the requests that run or wait."""
        return {request.spec.adapter for request in self.scheduler.requests.values()} - {""}

    def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        """What runs and waits, between two steps; see ``take_snapshot``."""
        return take_snapshot(
            self.scheduler, self.ended_requests, self.clock, with_blocks=with_blocks
        )

    def step(self) -> list[RequestOutput]:
        self.cache.expire_pins()
        outputs = [] if self._overdue is None else refuse_overdue(self.loop, self._overdue)
        if self.loop.has_work():
            outputs += self.loop.step()
        return self._forget_ended(outputs)

    def has_work(self) -> bool:
        return self.loop.has_work()

    def abort(self, request_id: str, error: ErrorMessage | None = None) -> list[RequestOutput]:
        """End all samples of a call; their last outputs say so. Unknown ids are ignored.

        Args:
            error: Why, where it is not the client who wants it.
        """
        self._awaited.forget(request_id)
        samples = self._samples.get(request_id, ())
        running = [sample for sample in samples if sample.finish_reason is None]
        return self._forget_ended(self.loop.end(running, FinishReason.ABORT, error))

    def die(self, error: EngineDeadError) -> list[RequestOutput]:
        """Fail for good: end every request with ``error`` and refuse all further ones with it."""
        return self._forget_ended(self.loop.die(error))

    def forget_client(self) -> None:
        """End what runs for a client that is gone; the next one begins with nothing of it.

        What is cached stays, and the next client is told of it. The clock may be another one from
        here on, so what goes by it, pins and targets, does not outlast the client.
        """
        self._forget_ended(self.loop.end(self.scheduler.requests.values(), FinishReason.ABORT))
        self.loop.forget_untold()
        self._awaited.clear()
        self.waiting_samples.begin_again()
        self.cache.end_pins()
        if self.targets is not None:
            self.targets.begin_again()
        kv = self.scheduler.kv
        self.index_log.begin_again(cached_keys(kv.pool, kv.states.pool))

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


def make_scheduler(info: ExecutorInfo, config: EngineConfig) -> MadeScheduler:
    """Scheduler and KV manager for an executor, as configured.

    Raises:
        ConfigError: The model has recurrent layers, as ``check_states`` says.
    """
    if info.num_state_slots:
        check_states(config)
    kv = make_kv(info, enable_prefix_caching=config.cache.enable_prefix_caching)
    speculation, tiers = config.speculation.resolve(), config.tiers
    scheduler = config.scheduler.for_device(gpu=info.device.startswith("cuda"))
    return assemble_scheduler(scheduler, kv, speculation, tiers.preemption, info.tiers)
