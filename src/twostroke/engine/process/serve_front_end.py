"""The engine's side of a connection: one front end, until it closes or is gone."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec

from twostroke.constraints.compiler import GrammarCompiler
from twostroke.core.errors import ConfigError, ErrorMessage, ModelLoadError, TwostrokeError
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.llm_engine import LLMEngine
from twostroke.engine.message_loop import MessageLoop
from twostroke.engine.messages import AddRequest, Close, Drain, EngineMessage
from twostroke.engine.process.frames import (
    MESSAGES,
    RECEIVE_BYTES,
    FrameCutter,
    encode_frame,
)
from twostroke.engine.process.handshake import EngineRefused, EngineStarted, StartEngine

logger = logging.getLogger(__name__)
_STARTS = msgspec.msgpack.Decoder(StartEngine)
ORPHAN_SECONDS = 10.0  # for the step that runs when the front end is gone


class FrontEnd:
    """The connection, seen from the engine.

    Args:
        connection: Blocking; closed with the process.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = self._receive()
        self._sending = threading.Lock()
        self.inbox: queue.SimpleQueue[EngineMessage | Drain] = queue.SimpleQueue()
        self._grammars: GrammarCompiler | None = None

    def first(self) -> StartEngine:
        """How the engine is to be. Raises ``EOFError`` if the front end is gone."""
        data = next(self._frames, None)
        if data is None:
            raise EOFError
        return _STARTS.decode(data)

    def send(self, message: object) -> None:
        """Wait until it is on its way; on any thread. Dropped, if the front end is gone.

        One that takes nothing for as long as the connection's time limit counts as gone.
        """
        data = encode_frame(message)
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:
                logger.debug("the front end is gone")
                self.hang_up()  # half a message may be on its way

    def hang_up(self) -> None:
        """End the connection; what listens to it notices."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def listen(self, when_gone: Callable[[], None]) -> None:
        """Put what comes into the inbox, on a thread of its own, until the front end is gone."""
        threading.Thread(
            target=self._listen, args=(when_gone,), name="twostroke-front-end", daemon=True
        ).start()

    def begin(self, grammars: GrammarCompiler | None) -> None:
        """The engine is there; the forms of answers are compiled as requests arrive."""
        self._grammars = grammars

    def _listen(self, when_gone: Callable[[], None]) -> None:
        try:
            for data in self._frames:
                message = MESSAGES.decode(data)
                if isinstance(message, AddRequest):
                    self._compile(message)
                self.inbox.put(message)
        except Exception:
            logger.exception("the front end's messages cannot be read")
        when_gone()

    def _compile(self, message: AddRequest) -> None:
        """Begin to compile a request's form, beside the engine's steps, which join it.

        The front end has compiled it, too, so it does not fail.
        """
        form = message.request.params.structured_outputs
        if form is not None and self._grammars is not None:
            self._grammars.begin(form, bounded=False)

    def _receive(self) -> Iterator[bytes]:
        cutter = FrameCutter()
        while data := self._receive_some():
            yield from cutter.cut(data)

    def _receive_some(self) -> bytes:
        """Nothing, if the front end has closed the connection or was killed."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except OSError:
            return b""


def serve_front_end(
    connection: socket.socket,
    load: Callable[[StartEngine], LLMEngine],
    set_up: Callable[[StartEngine], None],
    version: str,
) -> None:
    """Load the engine that the front end asks for, and run it until the front end ends it.

    Args:
        load: Runs on this thread, and so do all steps.
        set_up: Called first, for the log and the like.
        version: The engine's own.
    """
    front_end = FrontEnd(connection)
    try:
        start = front_end.first()
    except EOFError:
        return
    set_up(start)
    loaded = threading.Event()

    def end() -> None:
        if not loaded.is_set():
            os._exit(0)  # the interpreter cannot be torn down while a thread imports torch
        front_end.inbox.put(Close())
        threading.Timer(ORPHAN_SECONDS, os._exit, (1,)).start()

    front_end.listen(end)
    try:
        if start.version != version:
            raise ConfigError(
                f"the front end is twostroke {start.version}, the engine {version}",
                hint="install one version",
            )
        engine = load(start)
    except TwostrokeError as error:
        front_end.send(EngineRefused(ErrorMessage.of(error)))
        return
    except Exception as error:
        logger.exception("the engine cannot be started")
        failed = ModelLoadError(f"loading the model failed: {type(error).__name__}: {error}")
        front_end.send(EngineRefused(ErrorMessage.of(failed)))
        return
    loaded.set()
    front_end.begin(engine.grammars)
    front_end.send(EngineStarted(EngineFacts.of(engine)))
    loop = MessageLoop(engine, front_end.inbox, front_end.send)
    front_end.send(loop.report(with_records=True))
    loop.run()
