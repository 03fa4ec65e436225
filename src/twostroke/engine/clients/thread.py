"""The engine on a thread of its own, and its outputs as asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InvalidRequestError,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason
from twostroke.core.speculation_config import Speculation
from twostroke.engine.cache_admin import SurveyedCache
from twostroke.engine.cache_orders import CacheOrder, CacheReport, ShowCache
from twostroke.engine.cache_surveys import CacheSurveys
from twostroke.engine.clients.answers import Answers
from twostroke.engine.clients.queue_limit import QueueLimit, TargetLimit
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import (
    AbortRequest,
    AddRequest,
    Close,
    EngineMessage,
    ForgetRequest,
    ManageCache,
    TakeSnapshot,
    make_requests,
)
from twostroke.observability.events import RefusedRequest, SchedulerStats, StepEvent
from twostroke.observability.kv_events import KVEventBatch
from twostroke.observability.snapshot import EngineSnapshot
from twostroke.observability.targets.watch import TargetsInForce
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0
SNAPSHOT_SECONDS = 10.0  # a step that takes longer leaves a reader without an answer
T = TypeVar("T")


class AsyncEngine:
    """Implements ``EngineClient`` in this process.

    The engine's thread owns the engine. The event loop's thread validates calls and sends messages
    through an inbox that is emptied between steps, and gets each step's outputs back in one call.

    Args:
        engine: Not to be used by anyone else from here on.
        stall_seconds: A step that takes longer than this makes the engine unhealthy until it ends.
        max_queued_requests: How many samples may wait for their first step; see ``QueueLimit``.
            What comes during a step waits until the next, however much room there is.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        stall_seconds: float = STALL_SECONDS,
        max_queued_requests: int | None = None,
    ) -> None:
        self._engine = engine
        self._queue_limit = QueueLimit(max_queued_requests, engine.waiting_samples)
        # Not through the inbox, which would wake the engine's thread for each of them.
        self._refusals: deque[RefusedRequest] = deque()
        self._target_limit = TargetLimit(
            engine.admission, engine.clock, engine.num_cached, self._refusals.append
        )
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[EngineMessage] = queue.SimpleQueue()
        self._streams: dict[str, AsyncStream] = {}
        self._answers: Answers[CacheReport | SurveyedCache] = Answers()
        self._surveys = CacheSurveys(engine.cache)  # the engine's thread's own
        self._snapshots: Answers[EngineSnapshot] = Answers(SNAPSHOT_SECONDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = self._closed = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="twostroke-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> ExecutorInfo:
        return self._engine.info

    @property
    def scheduler_config(self) -> SchedulerConfig:
        return self._engine.scheduler.config

    @property
    def speculation(self) -> Speculation | None:
        return self._engine.config.speculation.resolve()

    @property
    def tokenizer(self) -> Tokenizer:
        if self._engine.tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer")
        return self._engine.tokenizer

    @property
    def grammars(self) -> GrammarCompiler:
        if self._engine.grammars is None:
            raise InvalidRequestError("this engine has no tokenizer")
        return self._engine.grammars

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
        message = self._engine.prepare(request)
        self._queue_limit.add(request.tenant, request.params.n)
        self._target_limit.add(request)
        abort = AbortRequest(request.request_id)
        form = request.params.structured_outputs
        grammar = None if form is None else self.grammars.find(form)
        stream = AsyncStream(request, partial(self._inbox.put, abort), grammar)
        self._streams[request.request_id] = stream
        self._inbox.put(message)
        return stream

    def check_in_time(self, tenant: str, request_id: str, waited: float) -> None:
        self._target_limit.check_least(tenant, request_id, waited)

    def stats(self) -> SchedulerStats:
        return self._engine.last_stats

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._engine.recorder.events(since)

    def kv_events(self, since: int = -1) -> list[KVEventBatch]:
        events = self._engine.cache.events
        if events is None:
            raise InvalidRequestError(
                "this server publishes no KV events", hint="start it with --kv-events"
            )
        return events.since(since)

    async def manage_cache(self, order: CacheOrder) -> CacheReport:
        self._use_loop(asyncio.get_running_loop())
        self._engine.loop.check_alive()
        answer = await self._answers.ask(lambda n: self._inbox.put(ManageCache(n, order)))
        # A large tree takes long to make, and the event loop has others to serve.
        return answer if isinstance(answer, CacheReport) else await asyncio.to_thread(answer.report)

    async def snapshot(self, *, with_blocks: bool = False) -> EngineSnapshot:
        self._use_loop(asyncio.get_running_loop())
        return await self._snapshots.ask(lambda n: self._inbox.put(TakeSnapshot(n, with_blocks)))

    def unhealthy_reason(self) -> str | None:
        if self._engine.dead:
            return self._engine.dead.message
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        since = self._busy_since
        if since is not None and self._engine.clock() - since > self._stall_seconds:
            return f"a step has been running for more than {self._stall_seconds:g} s"
        return None

    def render_metrics(self) -> tuple[bytes, str]:
        return self._engine.metrics.render()

    def targets(self) -> TargetsInForce:
        observer = self._engine.targets
        return TargetsInForce([], []) if observer is None else observer.in_force()

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

    # ---- the event loop's side -------------------------------------------------------------------

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on outputs go to ``loop``; requests of a loop that is closed are aborted."""
        former, self._loop = self._loop, loop
        if former is not None and former is not loop and former.is_closed():
            for request_id, stream in self._streams.items():
                stream.abandon()
                self._inbox.put(ForgetRequest(request_id))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            # The id stays taken until the engine's last output: a step in flight still uses it.
            if (stream := self._streams.get(output.request_id)) and stream.put(output):
                del self._streams[output.request_id]

    def _fail_streams(self, error: ErrorMessage) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.fail(error)

        self._answers.fail_all(error.to_exception())
        self._snapshots.fail_all(error.to_exception())

    def _drop_stream(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    # ---- the engine's side -----------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: whatever goes wrong in it, no stream is left waiting.

        A ``MemoryError`` ends it for ``threading.excepthook``: a server then ends its process.
        """
        error = EngineDeadError("the engine has been closed")
        try:
            while self._turn():
                pass
            self._send(self._engine.close())
        except MemoryError:
            self._engine.loop.dead = error = EngineDeadError("the engine ran out of memory")
            raise
        except BaseException as cause:  # a panic of the tokenizer's Rust is no Exception
            logger.exception("the engine's thread failed")
            error = EngineDeadError(f"the engine failed: {type(cause).__name__}: {cause}")
            self._engine.loop.dead = error
        finally:
            self._post(self._fail_streams, ErrorMessage.of(self._engine.dead or error))

    def _turn(self) -> bool:
        """Take what came in, run one step, send what came out. ``False`` when it is time to end."""
        outputs: list[RequestOutput] = []
        try:
            go_on = self._take_inbox(outputs)
            if go_on and self._engine.has_work():
                self._busy_since = self._engine.clock()
                outputs += self._engine.step()
                self._busy_since = None
        except MemoryError:
            raise
        except Exception as cause:  # a bug in the engine itself: end all requests rather than hang
            logger.exception("the engine failed")
            error = EngineDeadError(f"the engine failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._busy_since = None
            self._send(outputs + self._engine.die(error))
            # The last outputs of some may have been lost with the step.
            self._post(self._fail_streams, ErrorMessage.of(error))
            return True
        self._send(outputs)
        return go_on

    def _take_inbox(self, outputs: list[RequestOutput]) -> bool:
        """Carry out the messages that came in; wait for one if there is nothing to run.

        Returns ``False`` after ``Close``.
        """
        self._survey()
        for _ in range(len(self._refusals)):
            self._engine.loop.note_refusal(self._refusals.popleft())
        wait = not (self._engine.has_work() or self._surveys)
        while wait or not self._inbox.empty():
            message = self._inbox.get()
            wait = False
            match message:
                case AddRequest():
                    outputs += self._add(message)
                case AbortRequest():
                    outputs += self._engine.abort(message.request_id, message.error)
                case ForgetRequest():
                    # The stream's last outputs may have been lost with its event loop.
                    self._send(self._engine.abort(message.request_id))
                    self._post(self._drop_stream, message.request_id)
                case ManageCache():
                    self._manage(message.number, message.order)
                case TakeSnapshot():
                    self._post(self._snapshots.put, (message.number, self._snapshot(message)))
                case Close():
                    return False
        return True

    def _add(self, message: AddRequest) -> list[RequestOutput]:
        """Errors that only the engine's thread can find end that request, not the engine."""
        try:
            self._engine.add(message)
        except TwostrokeError as error:
            self._engine.waiting_samples.leave(message.request.tenant, message.num_samples)
            self._target_limit.leave(message.request_id, message.num_samples)
            requests = make_requests(message)
            reason, sent = FinishReason.ERROR, ErrorMessage.of(error)
            return [make_output(request, [], reason, sent) for request in requests]
        return []

    def _manage(self, number: int, order: CacheOrder) -> None:
        """Carry an order out and answer it; what takes long is only begun here."""
        try:
            if isinstance(order, ShowCache):
                self._surveys.ask(number, order)
                return
            answer: CacheReport | Exception = self._engine.cache.carry_out(order)
        except TwostrokeError as error:
            answer = error
        self._post(self._answers.put, (number, answer))

    def _survey(self) -> None:
        """Copy a piece more for who asked first; a step comes before the next one."""
        if (answered := self._surveys.advance()) is not None:
            numbers, answer = answered
            for number in numbers:
                self._post(self._answers.put, (number, answer))

    def _snapshot(self, message: TakeSnapshot) -> EngineSnapshot | Exception:
        """Whoever looks does not end the engine, whatever goes wrong."""
        try:
            return self._engine.snapshot(with_blocks=message.with_blocks)
        except MemoryError:
            raise
        except Exception as cause:
            logger.exception("the engine's state cannot be copied")
            return cause

    def _send(self, outputs: list[RequestOutput]) -> None:
        if outputs:
            self._post(self._deliver, outputs)

    def _post(self, action: Callable[[T], None], argument: T) -> None:
        """Run something on the event loop's thread, unless that loop is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action, argument)
