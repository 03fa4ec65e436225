"""An engine driven by messages: those that came in are carried out between two steps."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from twostroke.core.errors import EngineDeadError, EngineError, ErrorMessage, TwostrokeError
from twostroke.core.output import RequestOutput, make_output
from twostroke.core.request import FinishReason
from twostroke.engine.cache_admin import SurveyedCache
from twostroke.engine.cache_orders import CacheOrder, ShowCache
from twostroke.engine.cache_surveys import CacheSurveys
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.messages import (
    AbortRequest,
    AdaptersAnswer,
    AddRequest,
    AwaitRequest,
    CacheAnswer,
    Close,
    Drain,
    EngineEnded,
    EngineMessage,
    EngineReply,
    EngineStatus,
    ForgetRequest,
    Forgotten,
    LoadReport,
    ManageAdapters,
    ManageCache,
    NoteRefusal,
    RecordsAnswer,
    SnapshotAnswer,
    StepReport,
    TakeRecords,
    TakeSnapshot,
    make_requests,
)
from twostroke.engine.records import NewRecords

logger = logging.getLogger(__name__)

CLOSED = ErrorMessage.of(EngineDeadError("the engine has been closed"))


class MessageLoop:
    """Owns an engine and runs it on one thread, which may be in a process of its own.

    Args:
        engine: Not to be used by anyone else from here on.
        inbox: What the client sends.
        send: Takes what goes to the client, in order; called on any thread.
    """

    def __init__(
        self,
        engine: LLMEngine,
        inbox: queue.SimpleQueue[EngineMessage | Drain],
        send: Callable[[EngineReply], None],
    ) -> None:
        self.engine = engine
        self._inbox = inbox
        self._send = send
        self._surveys = CacheSurveys(engine.cache)
        self._records = NewRecords(engine)
        self._num_messages = 0
        self._asked_records: list[int] = []  # one rendering answers all
        self._error: ErrorMessage | None = None  # why the engine has ended
        self._draining = False

    def run(self) -> None:
        """Run until ``Close``: whatever goes wrong, no client is left waiting.

        A ``MemoryError`` ends it for ``threading.excepthook``: a server then ends its process.
        """
        try:
            while self._turn():
                pass
            self._send(self.report(self.engine.close(), with_records=True))
        except MemoryError:
            self._error = ErrorMessage.of(EngineDeadError("the engine ran out of memory"))
            raise
        except BaseException as cause:  # a panic of the tokenizer's Rust is no Exception
            logger.exception("the engine's thread failed")
            self._error = ErrorMessage.of(_failed(cause))
        finally:
            self._send(self.report())
            self._send(EngineEnded(self._error or CLOSED))

    def serve(self) -> None:
        """Run until ``Close``, or until nothing is left after ``Drain``; the engine stays.

        What still runs is dropped then, and its blocks are free.
        """
        try:
            while self._turn():
                pass
        finally:
            self.engine.forget_client()

    def report(
        self,
        outputs: Sequence[RequestOutput] = (),
        *,
        with_records: bool = False,
    ) -> StepReport:
        """The engine as it is now, and what has changed since the last report."""
        if self._error is None and self.engine.dead is not None:
            self._error = ErrorMessage.of(self.engine.dead)
        # Between two steps it is as busy: a process that stops there must be seen to hang, too.
        is_busy = self._error is None and self.engine.has_work()
        busy_since = self.engine.clock() if is_busy else None
        status = EngineStatus(self.engine.last_stats, self._error, busy_since, self._draining)
        num_left = self.engine.waiting_samples.take()
        events, kv_events = self._records.events(), self._records.kv_events()
        records = self._records.take() if with_records else None
        return StepReport(
            status,
            list(outputs),
            num_left,
            self._load(),
            self.engine.index_log.take(),
            events,
            kv_events,
            records,
            self._num_messages,
        )

    def _turn(self) -> bool:
        """Take what came in, run one step, send what came out. ``False`` when it is time to end."""
        outputs: list[RequestOutput] = []
        try:
            go_on = self._take_inbox(outputs)
            if go_on and self.engine.has_work():
                due = self._records.are_due()
                self._send(self.report(with_records=due))
                outputs += self.engine.step()
        except MemoryError:
            raise
        except Exception as cause:  # a bug in the engine itself: end all requests rather than hang
            logger.exception("the engine failed")
            error = _failed(cause)
            self._send(self.report(outputs + self.engine.die(error), with_records=True))
            # The last outputs of some may have been lost with the step.
            self._send(EngineEnded(ErrorMessage.of(error)))
            return True
        self._send(self.report(outputs))
        return go_on and (self.engine.has_work() or not self._draining)

    def _take_inbox(self, outputs: list[RequestOutput]) -> bool:
        """Carry out the messages that came in; wait for one if there is nothing to run.

        Returns ``False`` after ``Close``.
        """
        self._survey()
        wait = not (self.engine.has_work() or self._surveys)
        while wait or not self._inbox.empty():
            message = self._inbox.get()
            wait = False
            self._num_messages += 1
            match message:
                case AddRequest():
                    outputs += self._add(message)
                case AwaitRequest():
                    self.engine.expect(message)
                case AbortRequest():
                    outputs += self.engine.abort(message.request_id, message.error)
                case ForgetRequest():
                    # The stream's last outputs may have been lost with its event loop.
                    self._send(self.report(self.engine.abort(message.request_id)))
                    self._send(Forgotten(message.request_id))
                case NoteRefusal():
                    self.engine.loop.note_refusal(message.refused)
                case ManageCache():
                    self._manage(message.number, message.order)
                case ManageAdapters():
                    self._manage_adapters(message)
                case TakeSnapshot():
                    self._send(self._snapshot(message))
                case TakeRecords():
                    self._asked_records.append(message.number)
                case Drain():
                    self._draining = True
                case Close():
                    return False
        self._answer_records()
        return True

    def _add(self, message: AddRequest) -> list[RequestOutput]:
        """Errors that only the engine can find end that request, not the engine."""
        try:
            self.engine.add(message)
        except TwostrokeError as error:
            self.engine.waiting_samples.leave(message.request.tenant, message.num_samples)
            if self.engine.meter is not None:
                self.engine.meter.leave(message.request_id, message.num_samples)
            requests = make_requests(message)
            reason, sent = FinishReason.ERROR, ErrorMessage.of(error)
            return [make_output(request, [], reason, sent) for request in requests]
        return []

    def _manage(self, number: int, order: CacheOrder) -> None:
        """Carry an order out and answer it; what takes long is only begun here."""
        try:
            if isinstance(order, ShowCache):
                self._surveys.ask(number, order)
            else:
                report = self.engine.cache.carry_out(order)
                self._send(self.report())  # its KV events come first
                self._send(CacheAnswer(number, report))
        except TwostrokeError as error:
            self._send(CacheAnswer(number, error=ErrorMessage.of(error)))

    def _manage_adapters(self, message: ManageAdapters) -> None:
        engine, value, sent = self.engine, None, None
        try:
            value = engine.adapters.carry_out(message.order, engine.adapters_in_use())
        except TwostrokeError as error:
            sent = ErrorMessage.of(error)
        self._send(AdaptersAnswer(message.number, value, sent))

    def _survey(self) -> None:
        """Copy a piece more for the first that asked; a step comes before the next one."""
        answered = self._surveys.advance()
        if answered is None:
            return
        numbers, answer = answered
        if isinstance(answer, TwostrokeError):
            for number in numbers:
                self._send(CacheAnswer(number, error=ErrorMessage.of(answer)))
            return
        # A large tree takes long to make, and requests run meanwhile.
        arguments = numbers, answer
        threading.Thread(target=self._send_survey, args=arguments, daemon=True).start()

    def _send_survey(self, numbers: Sequence[int], surveyed: SurveyedCache) -> None:
        report = surveyed.report()
        for number in numbers:
            self._send(CacheAnswer(number, report))

    def _snapshot(self, message: TakeSnapshot) -> SnapshotAnswer:
        """A failure to copy the state does not end the engine."""
        try:
            snapshot = self.engine.snapshot(with_blocks=message.with_blocks)
            return SnapshotAnswer(message.number, snapshot)
        except MemoryError:
            raise
        except Exception:
            logger.exception("the engine's state cannot be copied")
            error = EngineError("the engine's state cannot be copied", hint="see the log")
            return SnapshotAnswer(message.number, error=ErrorMessage.of(error))

    def _answer_records(self) -> None:
        if not self._asked_records:
            return
        numbers, self._asked_records = self._asked_records, []
        records, error = self._records.take(), None
        if records is None:
            failed = EngineError("the engine's metrics cannot be shown", hint="see the log")
            error = ErrorMessage.of(failed)
        for number in numbers:
            self._send(RecordsAnswer(number, records, error))

    def _load(self) -> LoadReport | None:
        """What early refusal needs to know, if there is any."""
        if (meter := self.engine.meter) is None:
            return None
        left, meter.left = list(meter.left), deque()
        return LoadReport(meter.load, left)


def _failed(cause: BaseException) -> EngineDeadError:
    error = EngineDeadError(f"the engine failed: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
