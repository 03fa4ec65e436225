"""A worker: one engine that serves one front end after another, until it is told to leave."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType

from twostroke.core.errors import EngineDeadError
from twostroke.core.network.address import Address
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import Close, Drain
from twostroke.engine.process.serve_front_end import FrontEnd
from twostroke.engine.workers.greeting import ModelFingerprint, Welcome
from twostroke.engine.workers.listener import Guest, WorkerListener

logger = logging.getLogger(__name__)


class FrontEndClock:
    """The clock of the front end that is served, which an engine goes by.

    Times in messages are then of one clock, whatever machine they come from. It may fall only
    while the engine has no requests.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def follow(self, ahead: float) -> None:
        """Go by a clock that is ``ahead`` seconds ahead of this machine's."""
        self._ahead = ahead


class Worker:
    """Runs an engine on the calling thread.

    Args:
        engine: Loaded, and by ``clock``.
        model: What front ends must have asked for.
    """

    def __init__(
        self,
        engine: LLMEngine,
        clock: FrontEndClock,
        model: ModelFingerprint,
        listener: WorkerListener,
    ) -> None:
        self._engine, self._clock, self._model = engine, clock, model
        self._listener = listener
        self._front_end: FrontEnd | None = None
        self._seconds_left: float | None = None  # for what runs, once it drains

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._listener.address

    def run(self) -> None:
        """Serve until ``drain``, and what runs then has finished.

        Raises:
            EngineDeadError: The engine has failed.
        """
        while (guest := self._listener.next_guest()) is not None:
            logger.info("front end %s is here", guest.address)
            try:
                self._serve(guest)
            finally:
                self._front_end = None
                self._listener.let_go(guest)
            logger.info("front end %s is gone", guest.address)
            if (dead := self._engine.dead) is not None:
                raise EngineDeadError(dead.message, hint="see the log; start the worker again")
        self._engine.close()

    def drain(self, timeout: float) -> None:
        """Take no more requests, finish what runs, and leave. For a signal's handler.

        Args:
            timeout: Seconds after which it leaves anyway.
        """
        self._seconds_left = timeout
        self._listener.close()
        self._tell_to_drain()

    def _tell_to_drain(self) -> None:
        front_end = self._front_end  # once: a signal may come while it goes
        if front_end is not None and self._seconds_left is not None:
            inbox = front_end.inbox
            inbox.put(Drain())
            timer = threading.Timer(self._seconds_left, inbox.put, (Close(),))
            timer.daemon = True
            timer.start()

    def _serve(self, guest: Guest) -> None:
        engine = self._engine
        self._clock.follow(guest.ahead)
        front_end = FrontEnd(guest.connection)
        facts = EngineFacts.of(engine)
        front_end.begin(engine.grammars)
        front_end.send(Welcome(guest.proof, self._model, engine.config, facts))
        front_end.listen(lambda: front_end.inbox.put(Close()))
        loop = MessageLoop(engine, front_end.inbox, front_end.send)
        front_end.send(loop.report(with_records=True))
        self._front_end = front_end
        self._tell_to_drain()  # the signal may have come while no front end was there
        loop.serve()
        front_end.hang_up()


def end_on_signals(worker: Worker, timeout: float) -> None:
    """Drain at the first SIGTERM, SIGINT or SIGHUP, and end at once at the second."""
    signalled = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = True
        worker.drain(timeout)

    signal.signal(signal.SIGTERM, handle)
    for each in (signal.SIGINT, signal.SIGHUP):  # ignored in a script's background, and by nohup
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, handle)
