"""A client whose engine runs in a process of its own, is started again when it ends, and goes on.

A draw depends on its request's seed and position alone. So a request whose engine has ended goes on
in the next one from the tokens that its client has, and ends with the bytes it would have had.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.errors import EngineDeadError, ErrorMessage
from twostroke.core.generation_request import GenerationRequest
from twostroke.engine.adapters.registry import Adapters
from twostroke.engine.clients.answer_so_far import AnswerSoFar, without_deaths
from twostroke.engine.clients.engine_view import EnginePart
from twostroke.engine.clients.kept_records import KeptRecords
from twostroke.engine.clients.message_client import MessageClient
from twostroke.engine.clients.stream import AsyncStream
from twostroke.engine.intake import Seeds
from twostroke.engine.messages import (
    AbortRequest,
    AdaptersAnswer,
    AddRequest,
    Close,
    EngineEnded,
    EngineMessage,
    EngineReply,
    EngineStatus,
    StepReport,
)
from twostroke.engine.process.adapter_mirror import AdapterMirror
from twostroke.engine.process.engine_source import (
    EngineSource,
    StartedEngine,
    closed,
    given_up,
    missing_engine,
    start_again,
    unloaded,
)
from twostroke.engine.process.idleness import Idleness
from twostroke.engine.process.on_loop import do_on_loop
from twostroke.engine.process.process_link import END_SECONDS
from twostroke.engine.process.suspects import Suspects
from twostroke.observability.recorder import Recorder
from twostroke.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
STEADY_SECONDS = 10.0  # an engine that has lived as long is no reason for a pause
WATCH_SECONDS = 0.1
OWN_SECONDS = 5.0  # for which what may have ended two engines waits for its own
WAKING_STARTS = 2  # for a request that waits


class EngineProcess(MessageClient):
    """Implements ``EngineClient`` for an engine in another process, of this machine or another.

    While none runs, those that are not through wait, new requests are refused or wait as well, and
    metrics and events stay readable. A thread watches the process.

    Args:
        source, started: Where engines come from, and the first of them.
        tokenizer, grammars: The front end's own.
        recorder: Writes the engine's steps to a file.
        stall_seconds: A process that has not answered for as long is ended and started again.
        max_queued_requests, seeds: See ``MessageClient``.
        idle_seconds: The limit of ``idleness``.

    Attributes:
        hand_over: Gives another client a request that its engine has left, if there is one.
        holds_requests: Whether new requests wait while none runs. They are refused once it has been
            gone for ``stall_seconds``.
        answered: Whether the engine that runs has given a token.
        mirror: What the next engine is to have of adapters.
        idleness: Whether its process has been ended for want of requests.
        when_changed: Told that its engine has ended (false), or that another runs (true).
    """

    def __init__(
        self,
        source: EngineSource,
        started: StartedEngine,
        *,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        recorder: Recorder | None = None,
        stall_seconds: float,
        max_queued_requests: int | None = None,
        idle_seconds: float | None = None,
        seeds: Seeds | None = None,
    ) -> None:
        facts, config = started.facts, source.config
        super().__init__(
            *(config, facts, started.link),
            clock=time.monotonic,  # one for all processes of a machine
            tokenizer=tokenizer,
            grammars=grammars,
            adapters=Adapters(config.adapters),
            records=KeptRecords.configured(config, facts.labels, recorder),
            stall_seconds=stall_seconds,
            max_queued_requests=max_queued_requests,
            seeds=seeds,
        )
        self._source, self._process = source, started.link
        self.hand_over: Callable[[str, AsyncStream], bool] | None = None
        self.when_changed: Callable[[bool], None] = lambda runs: None
        self._adapters.known = {each.name: each for each in facts.adapters}
        self.mirror = AdapterMirror(self._adapters, self._send)
        self._process.start(self)
        self.idleness = Idleness(idle_seconds, self._clock)
        self._suspects = Suspects(lambda request_id: self._streams.get(request_id), self._resume)
        self.holds_requests, self.answered, self._lost_since = False, False, 0.0
        self._closing, self._taking = threading.Event(), threading.Lock()
        self._offered: StartedEngine | None = None  # started, and not taken yet
        self._watcher = threading.Thread(
            target=self._watch, name="twostroke-watch-engine", daemon=True
        )
        self._watcher.start()

    @property
    def takes_requests(self) -> bool:
        """Whether its engine runs, and is not about to leave."""
        return self._status.error is None and not self._status.draining

    def parts(self) -> list[EnginePart]:
        (part,) = super().parts()
        return [part.in_process(self._process.name, asleep=self.idleness.asleep)]

    def submit(self, request: GenerationRequest) -> AsyncStream:
        stream = super().submit(request)
        self.idleness.begin_anew()
        self.idleness.wake()  # it is sent once an engine runs
        return stream

    def keep(self, reply: EngineReply) -> None:
        if isinstance(reply, StepReport) and reply.outputs:
            self.answered |= any(output.token_ids for output in reply.outputs)
            self.idleness.begin_anew()
        if self.idleness.asleep and isinstance(reply, StepReport):  # its last: that it was closed
            reply = replace(reply, status=EngineStatus())
        super().keep(reply)

    def carry_out(self, reply: EngineReply) -> None:
        if isinstance(reply, EngineEnded) and not self._closing.is_set():
            return  # what it has not ended goes to the next engine
        if isinstance(reply, StepReport) and reply.status.error is not None:
            reply = replace(reply, outputs=without_deaths(reply.outputs))
        if isinstance(reply, AdaptersAnswer):
            self.mirror.take(reply)
        super().carry_out(reply)
        if isinstance(reply, StepReport):
            self._suspects.send_next()

    def unhealthy_reason(self) -> str | None:
        with contextlib.suppress(RuntimeError):  # asked without a loop: as it was told last
            self.use_loop(asyncio.get_running_loop())
        if self._status.draining:
            return f"{self._process.name} takes no more requests: it is shutting down"
        return self.idleness.trouble if self.idleness.asleep else super().unhealthy_reason()

    def close(self) -> None:
        with self._taking:
            self._closing.set()
        self.idleness.end()
        super().close()
        self._on_loop(partial(self._fail_all, closed()))
        self._records.close()

    def _check_alive(self) -> None:
        gone = self._clock() - self._lost_since
        if self.holds_requests and self._status.error is not None and gone < self._stall_seconds:
            return  # it is sent once another engine runs
        super()._check_alive()
        if self._status.draining:
            message = f"{self._process.name} is shutting down"
            raise EngineDeadError(message, hint="try again in some seconds")

    def _check_answers(self) -> None:
        super()._check_alive()
        self._check_alive()
        if self.idleness.asleep:
            message = "the engine has ended, since no request came for a while"
            raise EngineDeadError(message, hint="the next request starts it")

    def _send(self, message: EngineMessage) -> None:
        super()._send(message)
        if isinstance(message, AbortRequest) and self._status.error and not message.error:
            self._end_aborted(message.request_id)  # there is no engine to do it

    def _so_far(self, message: AddRequest) -> AnswerSoFar | None:
        return AnswerSoFar(message, self._clock)

    # ---- the thread that watches -----------------------------------------------------------------

    def _watch(self) -> None:
        """Start engines until that is given up; whatever goes wrong, no client is left waiting."""
        try:
            self._start_engines()
        except Exception as cause:
            logger.exception("the engine is given up")
            self._process.kill()
            message = f"the engine cannot be watched: {type(cause).__name__}: {cause}"
            self._on_loop(partial(self._give_up, given_up(message)))

    def _start_engines(self) -> None:
        """Start an engine whenever the one before it has ended, until that is given up."""
        num_starts, idleness = 0, self.idleness
        while True:
            began = time.monotonic()
            reason = self._wait_for_the_end()
            if self._closing.is_set():
                return
            limit = WAKING_STARTS if idleness.asleep else None
            if idleness.asleep:
                reason, num_starts = "the engine had ended for want of requests", 0
                self._on_loop(self._process.drain)
                idleness.wait(self._closing)
            else:
                logger.error("%s; %s", reason, self._source.again)
                self._on_loop(partial(self._lose, missing_engine(self._source, reason)))
                if self.answered or time.monotonic() - began > STEADY_SECONDS:
                    num_starts = 0
            tell = partial(self._note_failure, self._clock())
            started, num_starts = start_again(self._source, num_starts, self._closing, tell, limit)
            if started is not None:
                self._offer(started)
            elif self._closing.is_set():
                return
            elif idleness.asleep:
                self._on_loop(self._sleep_on)  # the next request tries again
            else:
                logger.error("%s, and cannot be started again", reason)
                error = given_up(f"{reason}, and cannot be started again")
                self._on_loop(partial(self._give_up, error))
                return

    def _offer(self, started: StartedEngine) -> None:
        """Have the client go on with it; close it where that closes instead."""
        self._offered = started
        while self._offered is not None and not self._closing.is_set():
            self._on_loop(self._go_on)  # again, if the loop stopped before it came to it
        if self._offered is None:
            logger.warning("the engine runs again, as %s", started.link.name)
        else:
            started.link.close()  # it is not taken once ``_closing`` is set

    def _wait_for_the_end(self) -> str:
        """Wait until the process has ended; end one that has failed or hangs. Returns why."""
        process, reason, asleep_since = self._process, "", self._clock()
        while not process.wait(WATCH_SECONDS):
            if self._closing.is_set():
                return ""
            if not self.idleness.asleep:
                asleep_since = self._clock()
            elif self._clock() - asleep_since > END_SECONDS:
                process.kill()
            awake = not reason and not self.idleness.asleep
            if awake and (reason := self._failure()):
                process.kill()
            elif self._streams:
                self.idleness.begin_anew()
            elif awake and self.idleness.is_due:
                self._on_loop(self._fall_asleep)
        return reason or process.why_ended() or ""

    def _failure(self) -> str:
        """Why an engine that runs must be ended; empty: it need not."""
        if self._stalls():
            self._on_loop(self._process.take_in)  # the loop may have been busy with other things
        if self._stalls():
            return f"the engine has not answered for {self._stall_seconds:g} s"
        error = self._status.error
        return "" if error is None else error.message

    def _stalls(self) -> bool:
        owes_since = self._process.owes_since(self._status.busy_since)
        return owes_since < self._clock() - self._stall_seconds

    def _note_failure(self, since: float, failure: Exception) -> None:
        """Tell why there has been no engine ``since``; what has waited too long for one ends."""
        error = missing_engine(self._source, str(failure))
        self._on_loop(partial(self._say, error))
        if self._clock() - since > OWN_SECONDS:
            self._on_loop(partial(self.hand_over_waiting, suspects=True))
        if not self._source.gives_up and self._clock() - since > self._stall_seconds:
            self._on_loop(partial(self._fail_all, error))

    def _on_loop(self, do: Callable[[], None]) -> None:
        """Have it done on the event loop's thread, and wait; here, if there is no loop."""
        do_on_loop(self._loop, do, self._closing.is_set)

    # ---- on the event loop's thread --------------------------------------------------------------

    def _fall_asleep(self) -> None:
        """End the process, unless a request has come meanwhile."""
        if self.idleness.is_due and not self._streams:
            self.idleness.asleep = True
            self._status = EngineStatus()
            logger.info("the engine ends: no request came for %g s", self.idleness.limit or 0)
            self._process.send(Close())

    def _sleep_on(self) -> None:
        """It could not be started: end the requests that wait for it."""
        self.idleness.sleep_on()
        self._fail_all(unloaded())

    def _lose(self, error: ErrorMessage) -> None:
        """The engine has ended: nothing more comes from it."""
        self._process.drain()
        if self.timelines is not None:
            self.timelines.lose(error.message)
        self.when_changed(False)
        self._status, self._lost_since = EngineStatus(error=error), self._clock()
        self._records.stop(self._status.stats)
        self._fail_questions(error)
        for request_id in [i for i, each in self._streams.items() if each.aborted]:
            self._end_aborted(request_id)
        self._suspects.note_end(self._streams)
        self.hand_over_waiting()

    def hand_over_waiting(self, *, suspects: bool = False) -> None:
        """Give others what waits here; what may have ended two engines only as ``suspects``."""
        if self._status.error is None or self.hand_over is None:
            return
        for request_id, stream in list(self._streams.items()):
            may_go = not stream.aborted and (suspects or not stream.is_suspect)
            if may_go and self.hand_over(request_id, stream):
                self._let_go(request_id)

    def _end_aborted(self, request_id: str) -> None:
        """Count it as ended at once, although its engine cannot say so any more."""
        if (stream := self._streams.pop(request_id, None)) is not None:
            stream.end_aborted()

    def _say(self, error: ErrorMessage) -> None:
        """This is why there is no engine just now."""
        if self.idleness.asleep:
            self.idleness.note_trouble(f"the model sleeps, and does not wake: {error.message}")
        else:
            self._status = EngineStatus(self._status.stats, error)

    def _go_on(self) -> None:
        """Send the engine that is offered what the one before it had not ended."""
        with self._taking:
            started = self._offered
            if started is None or self._closing.is_set():
                return
            self._offered = None
            self._link = self._process = started.link
        self._process.start(self)
        self.meet(started.facts)
        self._records.begin_again(time.time(), started.facts.labels)
        self._status, self.answered = EngineStatus(), False
        if self._loop is not None and not self._loop.is_closed():
            self._process.use_loop(self._loop)
        self.idleness.rise()
        self.mirror.restore(started.facts.adapters)
        suspects = [i for i, each in self._streams.items() if each.is_suspect]
        for request_id in [i for i in self._streams if i not in suspects]:
            self._resume(request_id)
        self._suspects.begin(suspects)
        self.when_changed(True)

    def adopt(self, request_id: str, stream: AsyncStream) -> None:
        """Go on with a request that another client had; on the event loop's thread."""
        self.use_loop(asyncio.get_running_loop())
        stream.abort_with(partial(self._send, AbortRequest(request_id)))
        self._streams[request_id] = stream
        self.idleness.begin_anew()
        if self.idleness.asleep:
            self.idleness.wake()
        else:
            self._resume(request_id)

    def _resume(self, request_id: str) -> None:
        """Send what is left of a request; one that cannot be sent ends alone."""
        stream = self._streams.get(request_id)
        message = stream.so_far.resume() if stream is not None and stream.so_far else None
        if stream is None or stream.aborted or message is None or not message.num_samples:
            self._end_aborted(request_id)
            return
        self._send(message)
        self.note_sent(message, stream)
        self._queue_limit.add(message.request.tenant, message.num_samples)
        self._target_limit.add(message.request, message.num_samples)

    def _give_up(self, error: ErrorMessage) -> None:
        self.idleness.asleep = False
        self._suspects.begin([])
        self._status = EngineStatus(self._status.stats, error)
        self._fail_all(error)
