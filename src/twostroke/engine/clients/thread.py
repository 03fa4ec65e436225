"""The engine on a thread of its own, and its outputs as asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import (
    EngineDeadError,
    ErrorMessage,
    InvalidRequestError,
    QueueFullError,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.executor import ExecutorInfo
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import (
    AbortRequest,
    AddRequest,
    Close,
    EngineMessage,
    ForgetRequest,
    GenerationRequest,
    make_requests,
)
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0
T = TypeVar("T")


class AsyncEngine:
    """Implements ``EngineClient`` in this process.

    The engine's thread owns the engine. The event loop's thread validates calls and sends messages
    through an inbox that is emptied between steps, and gets each step's outputs back in one call.

    Args:
        engine: Not to be used by anyone else from here on.
        stall_seconds: A step that takes longer than this makes the engine unhealthy until it ends.
        max_queued_requests: While that many requests wait, further ones are refused; ``None`` takes
            them all. What comes during a step waits until the next, however much room there is, so
            a burst can exceed a small limit.
    """

    def __init__(
        self,
        engine: LLMEngine,
        *,
        stall_seconds: float = STALL_SECONDS,
        max_queued_requests: int | None = None,
    ) -> None:
        self._engine = engine
        self._max_queued = max_queued_requests
        # Samples put into the inbox, and taken out of it: each is written by one thread only.
        self._num_submitted = self._num_taken = 0
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[EngineMessage] = queue.SimpleQueue()
        self._streams: dict[str, AsyncStream] = {}
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
        return self._engine.config.scheduler

    @property
    def tokenizer(self) -> Tokenizer:
        if self._engine.tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer")
        return self._engine.tokenizer

    def submit(self, request: GenerationRequest) -> AsyncStream:
        self._use_loop(asyncio.get_running_loop())
        if self._draining:
            what = "has been closed" if self._closed else "is shutting down"
            raise ShuttingDownError(f"the engine {what}", hint="retry against another server")
        if request.request_id in self._streams:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        message = self._engine.prepare(request)
        if not request.follows:
            self._check_queue()
        self._num_submitted += len(message.seeds)
        abort = AbortRequest(request.request_id)
        stream = AsyncStream(request, partial(self._inbox.put, abort))
        self._streams[request.request_id] = stream
        self._inbox.put(message)
        return stream

    def stats(self) -> SchedulerStats:
        return self._engine.last_stats

    def events(self, since: int = -1) -> list[StepEvent]:
        return self._engine.recorder.events(since)

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

    def _check_queue(self) -> None:
        """Refuse a call behind too many waiting requests. One taken may exceed the limit."""
        waiting = self._num_submitted - self._num_taken + self._engine.last_stats.num_waiting
        if self._max_queued is not None and waiting >= self._max_queued:
            message = f"{waiting} requests wait already, and at most {self._max_queued} may"
            raise QueueFullError(
                message, hint="try again later; the server's limit is --max-queued-requests"
            )

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            # The id stays taken until the engine's last output: a step in flight still uses it.
            if (stream := self._streams.get(output.request_id)) and stream.put(output):
                del self._streams[output.request_id]

    def _fail_streams(self, error: ErrorMessage) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.fail(error)

    def _drop_stream(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    # ---- the engine's side -----------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: whatever goes wrong in it, no stream is left waiting."""
        error = EngineDeadError("the engine has been closed")
        try:
            while self._turn():
                pass
            self._send(self._engine.close())
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
        wait = not self._engine.has_work()
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
                case Close():
                    return False
        return True

    def _add(self, message: AddRequest) -> list[RequestOutput]:
        """Errors that only the engine's thread can find end that request, not the engine."""
        try:
            self._engine.add(message)
        except TwostrokeError as error:
            requests = make_requests(message)
            reason, sent = FinishReason.ERROR, ErrorMessage.of(error)
            return [make_output(request, [], reason, sent) for request in requests]
        finally:
            # After they are queued: for a moment they count twice, but never not at all.
            self._num_taken += len(message.seeds)
        return []

    def _send(self, outputs: list[RequestOutput]) -> None:
        if outputs:
            self._post(self._deliver, outputs)

    def _post(self, action: Callable[[T], None], argument: T) -> None:
        """Run something on the event loop's thread, unless that loop is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action, argument)
