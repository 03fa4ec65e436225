"""The front end's side of a connection to an engine that runs in another process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import threading
import time
from abc import ABC, abstractmethod

from twostroke.engine.clients.link import Receiver
from twostroke.engine.messages import EngineMessage, StepReport
from twostroke.engine.process.frames import (
    RECEIVE_BYTES,
    REPLIES,
    FrameCutter,
    encode_frame,
)

logger = logging.getLogger(__name__)


class SocketLink(ABC):
    """Implements ``EngineLink`` over a stream socket.

    Replies are read by the event loop itself, so that a step's outputs reach their streams without
    a change of threads. Until there is a loop they wait in the socket.

    Args:
        connection: Taken over.

    Attributes:
        unanswered_since: Since when the engine has taken in no message, although some were sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._cutter, self._decoder = FrameCutter(), REPLIES
        self._unsent = bytearray()
        self._lock = threading.Lock()  # of what is to be sent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: Receiver
        self.unanswered_since: float | None = None
        self._num_sent = self._num_taken = 0
        self._closed = False
        self._ended = threading.Event()  # nothing more can come

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine, for logs: ``process 4711``."""

    @abstractmethod
    def why_ended(self) -> str | None:
        """See ``EngineLink``."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Whether the engine ends within that time."""

    @abstractmethod
    def kill(self) -> None:
        """Have nothing more of the engine, at once; on any thread."""

    @abstractmethod
    def close(self) -> None:
        """See ``EngineLink``."""

    def owes_since(self, busy_since: float | None) -> float:
        """Since when the engine owes the end of a step, or an answer; infinity: it does not."""
        since = (busy_since, self.unanswered_since)
        return min((each for each in since if each is not None), default=math.inf)

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

    def take_in(self) -> None:
        """Read all that has come; on the event loop's thread."""
        while self._receive():
            pass

    def drain(self) -> None:
        """Take in what an engine that has ended had sent before; on the event loop's thread."""
        self.take_in()
        self._stop_reading()

    def _hang_up(self) -> None:
        """End the connection; on any thread."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        """Close the socket, where nothing reads it."""
        if self._loop is None or self._loop.is_closed():
            self._socket.close()
        else:
            self._loop.call_soon_threadsafe(self._stop_reading)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Some of what has come; then the loop goes on with other things."""
        if self._receive() == 0 and self._loop is loop:
            self._stop_reading()  # the engine is about to end

    def _receive(self) -> int | None:
        """How many bytes were taken in: 0 at the end, ``None`` if nothing has come."""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._ended.set()
        elif not self._closed:
            self._take(data)
        return len(data)

    def _take(self, data: bytes) -> None:
        try:
            for frame in self._cutter.cut(data):
                reply = self._decoder.decode(frame)
                if isinstance(reply, StepReport):
                    self._note_taken(reply.num_messages)
                self._receiver.keep(reply)
                self._receiver.carry_out(reply)
        except Exception:
            logger.exception("a reply of %s cannot be taken in; it is ended", self.name)
            self._closed = True
            self.kill()

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
