"""The engine on a thread of its own, and its outputs as asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Mapping
from functools import partial

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import ErrorMessage, InvalidRequestError, ShuttingDownError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import Speculation
from twostroke.engine.adapters.orders import AdapterOrder, KnownAdapter
from twostroke.engine.cache_orders import CacheOrder, CacheReport
from twostroke.engine.clients.answers import Answers
from twostroke.engine.clients.kept_records import KeptRecords
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.engine.clients.queue_limit import QueueLimit
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.clients.target_limit import TargetLimit
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import (
    AbortRequest,
    AdaptersAnswer,
    CacheAnswer,
    Close,
    EngineEnded,
    EngineMessage,
    EngineRecords,
    EngineReply,
    EngineStatus,
    ForgetRequest,
    Forgotten,
    ManageAdapters,
    ManageCache,
    NoteRefusal,
    RecordsAnswer,
    SnapshotAnswer,
    StepReport,
    TakeRecords,
    TakeSnapshot,
)
from twostroke.observability.events import RefusedRequest, StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.text.tokenizer import Tokenizer

STALL_SECONDS = 60.0
SNAPSHOT_SECONDS = 10.0  # a step that takes longer leaves a reader without an answer


class AsyncEngine:
    """Implements ``EngineClient`` in this process.

    The engine's thread owns the engine (``MessageLoop``). The event loop's thread validates calls
    and sends messages through an inbox that is emptied between steps. It gets each step's outputs
    back in one call; the engine's status is kept at once, by the thread that brings it.

    Args:
        engine: Not to be used by anyone else from here on.
        stall_seconds: A step that takes longer than this makes the engine unhealthy until it ends.
        max_queued_requests: How many samples may wait for their first step; see ``QueueLimit``.
            What comes during a step waits until the next, however much room there is.

    Attributes:
        info: The loaded model.
        scheduler_config: The scheduler's settings.
        speculation: How tokens are guessed ahead, if they are.
        watched_targets: The targets that are watched, each as ``--target`` takes it.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        stall_seconds: float = STALL_SECONDS,
        max_queued_requests: int | None = None,
    ) -> None:
        self.info: ExecutorInfo = engine.info
        self.scheduler_config: SchedulerConfig = engine.scheduler.config
        self.speculation: Speculation | None = engine.config.speculation.resolve()
        self._tokenizer, self._grammars = engine.tokenizer, engine.grammars
        self._intake, self._clock = engine.intake, engine.clock
        self.watched_targets = [] if engine.targets is None else engine.targets.watched
        self._records = KeptRecords(
            engine.config.observability.step_events,
            engine.metrics.labels,
            publishes_kv=engine.cache.events is not None,
        )
        self._queue_limit = QueueLimit(max_queued_requests)
        self._target_limit = TargetLimit(
            self.scheduler_config, engine.ttft_targets, self.info, self._clock, self._note_refusal
        )
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[EngineMessage] = queue.SimpleQueue()
        self._streams: dict[str, AsyncStream] = {}
        self._cache_answers: Answers[CacheReport] = Answers()
        self._adapters = engine.adapters
        self._adapter_answers: Answers[KnownAdapter] = Answers()
        self._snapshots: Answers[EngineSnapshot] = Answers(SNAPSHOT_SECONDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = self._closed = False
        self._messages = MessageLoop(engine, self._inbox, self._receive)
        self._status = EngineStatus()
        self._receive(self._messages.report(with_records=True))
        self._thread = threading.Thread(
            target=self._messages.run, name="twostroke-engine", daemon=True
        )
        self._thread.start()

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def tokenizer(self) -> Tokenizer:
        """The front end's own; an engine in this process makes its texts with the same one."""
        if self._tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer")
        return self._tokenizer

    def loaded_model(self) -> LoadedModel:
        """This engine, and what a front end needs beside it."""
        grammars = self._grammars
        if grammars is None:
            grammars = GrammarCompiler(self.tokenizer)
        return LoadedModel(self, self.tokenizer, grammars)

    def submit(self, request: GenerationRequest) -> AsyncStream:
        self._use_loop(asyncio.get_running_loop())
        if self._draining:
            what = "has been closed" if self._closed else "is shutting down"
            raise ShuttingDownError(f"the engine {what}", hint="retry against another server")
        if request.request_id in self._streams:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        if not request.follows:  # before the work: a refusal must cost little
            num_samples = request.params.n + request.num_following_samples
            self._queue_limit.check(request.tenant, num_samples)
            self._target_limit.check(request)
        self._check_alive()
        message = self._intake.prepare(request, self._clock())
        self._queue_limit.add(request.tenant, request.params.n)
        self._target_limit.add(request)
        abort = AbortRequest(request.request_id)
        form, grammars = request.params.structured_outputs, self._grammars
        grammar = None if form is None or grammars is None else grammars.find(form)
        stream = AsyncStream(request, partial(self._inbox.put, abort), grammar)
        self._streams[request.request_id] = stream
        self._inbox.put(message)
        return stream

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        self._target_limit.check_least(tenant, request_id, waited)

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._records.events(since)

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        return self._records.kv_events(since)

    async def records(self) -> EngineRecords:
        if not self._thread.is_alive():
            return self._records.latest()
        self._use_loop(asyncio.get_running_loop())
        return await self._records.ask(lambda n: self._inbox.put(TakeRecords(n)))

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        self._use_loop(asyncio.get_running_loop())
        self._check_alive()
        return await self._cache_answers.ask(lambda n: self._inbox.put(ManageCache(n, order)))

    @property
    def adapters(self) -> Mapping[str, KnownAdapter]:
        return self._adapters.known

    async def manage_adapters(self, order: AdapterOrder) -> KnownAdapter:
        self._use_loop(asyncio.get_running_loop())
        self._check_alive()
        return await self._adapter_answers.ask(lambda n: self._inbox.put(ManageAdapters(n, order)))

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        self._use_loop(asyncio.get_running_loop())
        return await self._snapshots.ask(lambda n: self._inbox.put(TakeSnapshot(n, with_blocks)))

    def unhealthy_reason(self) -> str | None:
        status = self._status
        if status.error is not None:
            return status.error.message
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        since = status.busy_since
        if since is not None and self._clock() - since > self._stall_seconds:
            return f"a step has been running for more than {self._stall_seconds:g} s"
        return None

    async def drain(self, timeout: float) -> None:
        self._draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._streams:
                    await asyncio.sleep(0.02)
        message = "the server shut down before the answer was complete"
        for request_id, stream in list(self._streams.items()):
            error = ErrorMessage.of(
                ShuttingDownError(message, hint="send the request again, to another server")
            )
            self._inbox.put(AbortRequest(request_id, error))
            # At once: the engine aborts after the step that it is in, which may outlast the server.
            stream.fail(error, FinishReason.ABORT)

    def close(self) -> None:
        """Stop the thread after its step, end what runs, and release the engine's resources."""
        self._draining = self._closed = True
        self._inbox.put(Close())
        self._thread.join()

    def _note_refusal(self, refused: RefusedRequest) -> None:
        self._inbox.put(NoteRefusal(refused))

    def _check_alive(self) -> None:
        if self._status.error is not None:
            raise self._status.error.to_exception()

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on outputs go to ``loop``; requests of a loop that is closed are aborted."""
        former, self._loop = self._loop, loop
        if former is not None and former is not loop and former.is_closed():
            for request_id, stream in self._streams.items():
                stream.abandon()
                self._inbox.put(ForgetRequest(request_id))

    # ---- what comes back -------------------------------------------------------------------------

    def _receive(self, reply: EngineReply) -> None:
        """Keep a report, and pass on to the event loop's thread what concerns its streams."""
        if isinstance(reply, StepReport):
            self._status = reply.status
            self._records.take(reply)
            self._queue_limit.num_left.update(reply.num_left)
            if reply.load is not None:
                self._target_limit.take(reply.load)
            if not reply.outputs:
                return
        elif isinstance(reply, RecordsAnswer) and reply.value is not None:
            self._records.keep(reply.value)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                self._loop.call_soon_threadsafe(self._carry_out, reply)

    def _carry_out(self, reply: EngineReply) -> None:
        match reply:
            case StepReport():
                self._deliver(reply.outputs)
            case Forgotten():
                self._streams.pop(reply.request_id, None)
            case CacheAnswer():
                self._cache_answers.put(reply.number, reply.value, reply.error)
            case AdaptersAnswer():
                self._adapter_answers.put(reply.number, reply.value, reply.error)
            case SnapshotAnswer():
                self._snapshots.put(reply.number, reply.value, reply.error)
            case RecordsAnswer():
                self._records.answers.put(reply.number, reply.value, reply.error)
            case EngineEnded():
                self._fail_all(reply.error)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            # The id stays taken until the engine's last output: a step in flight still uses it.
            if (stream := self._streams.get(output.request_id)) and stream.put(output):
                del self._streams[output.request_id]

    def _fail_all(self, error: ErrorMessage) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.fail(error)
        self._cache_answers.fail_all(error)
        self._adapter_answers.fail_all(error)
        self._snapshots.fail_all(error)
        self._records.answers.fail_all(error)
