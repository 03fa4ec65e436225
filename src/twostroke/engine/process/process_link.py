"""The front end's side of a connection: an engine in a process that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import msgspec

from twostroke.core.errors import ConfigError, EngineDeadError, ErrorMessage, ModelLoadError
from twostroke.engine.clients.facts import EngineFacts
from twostroke.engine.clients.link import Receiver
from twostroke.engine.messages import Close, EngineMessage, StepReport
from twostroke.engine.process.frames import (
    RECEIVE_BYTES,
    FrameCutter,
    encode_frame,
    reply_decoder,
)
from twostroke.engine.process.handshake import EngineRefused, StartAnswer, StartEngine

logger = logging.getLogger(__name__)
MODULE = "twostroke.engine_process"
END_SECONDS = 30.0  # for the step that runs when the engine is closed
_START_ERRORS = {kind.__name__: kind for kind in (ConfigError, ModelLoadError)}


class ProcessLink:
    """Implements ``EngineLink``: an engine in another process, over a pair of sockets.

    Replies are read by the event loop itself, so that a step's outputs reach their streams without
    a change of threads. Until there is a loop they wait in the socket.

    Attributes:
        unanswered_since: Since when the engine has taken in no message, although some were sent.
    """

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        connection.setblocking(False)
        self._process, self._socket = process, connection
        self._cutter, self._decoder = FrameCutter(), reply_decoder()
        self._unsent = bytearray()
        self._lock = threading.Lock()  # of what is to be sent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: Receiver
        self.unanswered_since: float | None = None
        self._num_sent = self._num_taken = 0
        self._closed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, receiver: Receiver) -> None:
        """Replies go to ``receiver``."""
        self._receiver = receiver

    def send(self, message: EngineMessage) -> None:
        data = encode_frame(message)
        self._num_sent += 1
        if self.unanswered_since is None:
            self.unanswered_since = time.monotonic()
        with self._lock:
            if not self._unsent:
                data = data[self._send_some(data) :]
            if data:
                self._unsent += data
                if self._loop is not None:
                    with contextlib.suppress(RuntimeError):  # that loop is closed
                        self._loop.call_soon_threadsafe(self._wait_to_send, self._loop)

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        former, self._loop = self._loop, loop
        if former is not None and not former.is_closed() and self._socket.fileno() >= 0:
            former.remove_reader(self._socket)
            former.remove_writer(self._socket)
        if self._socket.fileno() >= 0:
            loop.add_reader(self._socket, self._read, loop)
            if self._unsent:
                self._wait_to_send(loop)

    def why_ended(self) -> str | None:
        code = self._process.poll()
        return None if code is None else f"the engine's process {how_it_ended(code)}"

    def wait(self, seconds: float) -> bool:
        """Whether the process ends within that time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def take_in(self) -> None:
        """Read all that has come; on the event loop's thread."""
        while self._receive():
            pass

    def drain(self) -> None:
        """Take in what a process that has ended had sent before; on the event loop's thread."""
        self.take_in()
        self._stop_reading()

    def close(self) -> None:
        self.send(Close())
        self._closed = True
        deadline = time.monotonic() + END_SECONDS
        while not self.wait(0.02):
            if time.monotonic() > deadline:
                self.kill()
            # Its last outputs are dropped; it must not wait for room in the socket.
            while self._receive():
                pass
        if self._loop is None or self._loop.is_closed():
            self._socket.close()
        else:
            self._loop.call_soon_threadsafe(self._stop_reading)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Some of what has come; then the loop goes on with other things."""
        if self._receive() == 0 and self._loop is loop:
            self._stop_reading()  # the process is about to end

    def _receive(self) -> int | None:
        """How many bytes were taken in: 0 at the end, ``None`` if nothing has come."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return 0
        if self._closed:
            return len(data)
        try:
            for frame in self._cutter.cut(data):
                reply = self._decoder.decode(frame)
                if isinstance(reply, StepReport):
                    self._note_taken(reply.num_messages)
                self._receiver.keep(reply)
                self._receiver.carry_out(reply)
        except Exception:
            logger.exception("a reply of the engine cannot be taken in; its process is ended")
            self._closed = True
            self.kill()
        return len(data)

    def _note_taken(self, num_messages: int) -> None:
        if num_messages > self._num_taken:
            self._num_taken = num_messages
            is_all = num_messages >= self._num_sent
            self.unanswered_since = None if is_all else time.monotonic()

    def _stop_reading(self) -> None:
        if self._loop is not None and not self._loop.is_closed() and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()

    def _wait_to_send(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop and self._socket.fileno() >= 0:
            loop.add_writer(self._socket, self._send_rest, loop)

    def _send_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            del self._unsent[: self._send_some(bytes(self._unsent[:RECEIVE_BYTES]))]
            if not self._unsent:
                loop.remove_writer(self._socket)

    def _send_some(self, data: bytes) -> int:
        """How many bytes the socket has taken; all of them, if the engine is gone."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)


class StartedEngine(NamedTuple):
    """A link to an engine, and what that has said of itself."""

    link: ProcessLink
    facts: EngineFacts


def start_engine(start: StartEngine) -> StartedEngine:
    """Start an engine in a process of its own, and wait until it is ready.

    Raises:
        ConfigError, ModelLoadError, InsufficientMemoryError: The engine cannot be started.
        EngineDeadError: Its process ended before it was ready.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = theirs.fileno()
        # -P: a file in the current folder that is called like a module must not be run. A session
        # of its own: what a terminal sends to the server's group is the server's.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(descriptor)],
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,
            env=_environment(start.num_threads),
        )
    try:
        ours.sendall(encode_frame(start))
        answer = _receive_answer(ours)
    except BaseException:
        process.kill()
        process.wait()
        ours.close()
        raise
    if answer is None:
        code = process.wait()
        ours.close()
        raise EngineDeadError(
            f"the engine's process {how_it_ended(code)} before it was ready", hint="see the log"
        )
    if isinstance(answer, EngineRefused):
        process.wait()
        ours.close()
        raise _start_error(answer.error)
    return StartedEngine(ProcessLink(process, ours), answer.facts)


def _environment(num_threads: int) -> dict[str, str]:
    """Set a number of threads, unless the user has set one."""
    wanted = {"OMP_NUM_THREADS": str(num_threads)} if num_threads else {}
    return {**wanted, **os.environ}


def how_it_ended(code: int) -> str:
    """The end of a sentence about a process: which signal or status ended it."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def _receive_answer(connection: socket.socket) -> StartAnswer | None:
    """The first message; ``None`` if the engine is gone. What follows stays in the socket."""
    header = _receive_exactly(connection, 4)
    if header is None:
        return None
    data = _receive_exactly(connection, int.from_bytes(header, "little"))
    if data is None:
        return None
    answers: msgspec.msgpack.Decoder[StartAnswer] = msgspec.msgpack.Decoder(StartAnswer)
    return answers.decode(data)


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    pieces = bytearray()
    while len(pieces) < count:
        try:
            data = connection.recv(count - len(pieces))
        except OSError:
            return None
        if not data:
            return None
        pieces += data
    return bytes(pieces)


def _start_error(error: ErrorMessage) -> Exception:
    kind = _START_ERRORS.get(error.kind)
    return error.to_exception() if kind is None else kind(error.message, hint=error.hint)
