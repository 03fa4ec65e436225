"""The engine on a thread of its own, and its outputs as asyncio streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from twostroke.core.config import SchedulerConfig
from twostroke.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    QueueFullError,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.core.output import RequestOutput
from twostroke.core.request import FinishReason, Request
from twostroke.engine.clients.base import ChargedTokens, GenerationRequest
from twostroke.engine.engine import Engine
from twostroke.engine.executor import ExecutorInfo
from twostroke.observability.events import SchedulerStats, StepEvent
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

STALL_SECONDS = 60.0
T = TypeVar("T")


class AsyncStream:
    """Implements ``OutputStream``; lives on the event loop's thread.

    Args:
        call: Whose outputs these are.
        abort: Asks the engine to end the request; its last outputs come here all the same, and
            nobody hears them.
    """

    def __init__(self, call: GenerationRequest, abort: Callable[[], None]) -> None:
        self._call = call
        # Until somebody listens, outputs are kept for whoever will, or for an iterator.
        self._outputs: asyncio.Queue[RequestOutput | None] = asyncio.Queue()
        self._hear: Callable[[RequestOutput], None] = self._outputs.put_nowait
        self._unfinished = set(range(call.params.n))
        self._num_unread = call.params.n
        self._aborted = False
        self._abort = abort
        self._prompt_tokens = self._output_tokens = 0
        self._tell: list[Callable[[ChargedTokens], None]] = []

    def listen(self, hear: Callable[[RequestOutput], None]) -> None:
        self._hear = hear
        while not self._outputs.empty():
            if (output := self._outputs.get_nowait()) is not None:
                self._pass_on(output)

    async def __aiter__(self) -> AsyncIterator[RequestOutput]:
        try:
            while self._num_unread and (output := await self._outputs.get()) is not None:
                self._num_unread -= output.finished
                yield output
        finally:
            self.abort()

    def abort(self) -> None:
        if self._unfinished and not self._aborted:
            self._aborted = True
            self._outputs.put_nowait(
                None
            )  # whoever still reads must not wait for what will not come
            self._abort()

    def abandon(self) -> None:
        """Nobody reads it again: its event loop is closed."""
        self._aborted = True

    @property
    def usage(self) -> ChargedTokens:
        return ChargedTokens(self._prompt_tokens, self._output_tokens)

    def when_ended(self, tell: Callable[[ChargedTokens], None]) -> None:
        if self._unfinished:
            self._tell.append(tell)
        else:
            tell(self.usage)

    def put(self, output: RequestOutput) -> bool:
        """Pass an output on; tells whether the request has ended."""
        self._output_tokens += len(output.token_ids)
        if output.num_used_prompt_tokens > self._prompt_tokens:
            self._prompt_tokens = output.num_used_prompt_tokens
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
        self._pass_on(output)
        if self._unfinished:
            return False
        told, self._tell = self._tell, []
        for tell in told:
            tell(self.usage)
        return True

    def _pass_on(self, output: RequestOutput) -> None:
        """Whatever goes wrong with whoever listens, other streams get theirs."""
        if self._aborted:
            return
        try:
            self._hear(output)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the tokenizer's Rust is no Exception
            logger.exception("request %s: nobody hears its outputs any more", self._call.request_id)
            self.abort()
            self._aborted = True  # also where there is nothing left to abort, but more to hand over

    def fail(self, error: TwostrokeError, reason: FinishReason = FinishReason.ERROR) -> None:
        """End the samples that will get no more outputs, or are not to wait for them."""
        for index in sorted(self._unfinished):
            self.put(
                RequestOutput(
                    request_id=self._call.request_id,
                    index=index,
                    token_ids=[],
                    num_prompt_tokens=len(self._call.prompt_token_ids),
                    num_cached_tokens=0,
                    finish_reason=reason,
                    error=error,
                )
            )


class AsyncEngine:
    """Implements ``EngineClient`` in this process.

    The engine's thread owns the engine. The event loop's thread hands it closures through an inbox
    that is emptied between steps, and gets each step's outputs back in one call.

    Args:
        engine: Not to be used by anyone else from here on.
        stall_seconds: A step that takes longer than this makes the engine unhealthy until it ends.
        max_queued_requests: While that many requests wait, further ones are refused; ``None`` takes
            them all. What comes during a step waits until the next, however much room there is, so
            a burst can exceed a small limit.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        stall_seconds: float = STALL_SECONDS,
        max_queued_requests: int | None = None,
    ) -> None:
        self._engine = engine
        self._max_queued = max_queued_requests
        # Samples put into the inbox, and taken out of it: each is written by one thread only.
        self._num_submitted = self._num_taken = 0
        self._stall_seconds = stall_seconds
        self._inbox: queue.SimpleQueue[Callable[[], list[RequestOutput]] | None] = (
            queue.SimpleQueue()
        )
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
        self._live_on(asyncio.get_running_loop())
        if self._draining:
            what = "has been closed" if self._closed else "is shutting down"
            raise ShuttingDownError(f"the engine {what}", hint="retry against another server")
        if request.request_id in self._streams:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use", param="request_id"
            )
        samples = self._engine.prepare(request)
        if not request.follows:
            self._check_queue()
        self._num_submitted += len(samples)
        stream = AsyncStream(
            request, lambda: self._inbox.put(lambda: self._engine.abort(request.request_id))
        )
        self._streams[request.request_id] = stream
        self._inbox.put(lambda: self._add(samples))
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
            error = ShuttingDownError(message, hint="send the request again, to another server")
            self._inbox.put(partial(self._engine.abort, request_id, error))
            # At once: the engine hears of it after the step that it is in, and that may outlast the
            # server.
            stream.fail(error, FinishReason.ABORT)

    def close(self) -> None:
        """Stop the thread after the step it is in, end what runs, and release the engine's
        resources.
        """
        self._draining = self._closed = True
        self._inbox.put(None)
        self._thread.join()

    # ---- the event loop's side -------------------------------------------------------------------

    def _live_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on outputs go to ``loop``. What was asked for on one that is closed by now is
        aborted.
        """
        former, self._loop = self._loop, loop
        if former is not None and former is not loop and former.is_closed():
            for request_id, stream in self._streams.items():
                stream.abandon()
                self._inbox.put(partial(self._forget, request_id))

    def _check_queue(self) -> None:
        """Refuse what would wait behind too many. Only the waiting count, so one call may exceed
        it.
        """
        waiting = self._num_submitted - self._num_taken + self._engine.last_stats.num_waiting
        if self._max_queued is not None and waiting >= self._max_queued:
            message = f"{waiting} requests wait already, and at most {self._max_queued} may"
            raise QueueFullError(
                message, hint="try again later; the server's limit is --max-queued-requests"
            )

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            # The id stays taken until the engine has let go of it: a step in flight still answers
            # under it.
            if (stream := self._streams.get(output.request_id)) and stream.put(output):
                del self._streams[output.request_id]

    def _fail_streams(self, error: TwostrokeError) -> None:
        failed, self._streams = self._streams, {}
        for stream in failed.values():
            stream.fail(error)

    # ---- the engine's side -----------------------------------------------------------------------

    def _run(self) -> None:
        """The thread: whatever goes wrong in it, no stream is left waiting."""
        try:
            while self._turn():
                pass
            self._send(self._engine.close())
        except BaseException as cause:  # a panic of the tokenizer's Rust is no Exception
            logger.exception("the engine's thread failed")
            self._engine.dead = EngineDeadError(
                f"the engine failed: {type(cause).__name__}: {cause}"
            )
        finally:
            self._post(
                self._fail_streams,
                self._engine.dead or EngineDeadError("the engine has been closed"),
            )

    def _turn(self) -> bool:
        """Take what came in, run one step, send what came out. ``False`` when it is time to end."""
        outputs: list[RequestOutput] = []
        try:
            go_on = self._take_inbox(outputs)
            if go_on and self._engine.has_work():
                self._busy_since = self._engine.clock()
                outputs += self._engine.step()
                self._busy_since = None
        except (
            Exception
        ) as cause:  # a bug in the engine itself: say so to everyone rather than hang
            logger.exception("the engine failed")
            error = EngineDeadError(f"the engine failed: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            go_on, self._busy_since = True, None
            self._send(outputs + self._engine.die(error))
            self._post(
                self._fail_streams, error
            )  # those whose last outputs were lost with the step
            return go_on
        self._send(outputs)
        return go_on

    def _take_inbox(self, outputs: list[RequestOutput]) -> bool:
        """Carry out what the event loop asked for; wait for it if there is nothing to run."""
        wait = not self._engine.has_work()
        while wait or not self._inbox.empty():
            action = self._inbox.get()
            if action is None:
                return False
            outputs += action()
            wait = False
        return True

    def _forget(self, request_id: str) -> list[RequestOutput]:
        """Abort a request and drop its stream, whose last outputs may have been lost with its event
        loop.
        """
        self._send(self._engine.abort(request_id))
        self._post(self._drop, request_id)
        return []

    def _drop(self, request_id: str) -> None:
        self._streams.pop(request_id, None)

    def _send(self, outputs: list[RequestOutput]) -> None:
        if outputs:
            self._post(self._deliver, outputs)

    def _post(self, action: Callable[[T], None], argument: T) -> None:
        """Run something on the event loop's thread."""
        if self._loop is not None:
            with contextlib.suppress(
                RuntimeError
            ):  # the event loop has been closed: nobody is listening
                self._loop.call_soon_threadsafe(action, argument)

    def _add(self, samples: list[Request]) -> list[RequestOutput]:
        """What only the engine's thread can find wrong with a request ends that request, not the
        engine.
        """
        try:
            self._engine.add(samples)
        except TwostrokeError as error:
            return self._engine.refuse(samples, error)
        finally:
            # After they are queued: for a moment they count twice, but never not at all.
            self._num_taken += len(samples)
        return []
