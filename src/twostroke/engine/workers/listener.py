"""The worker's door: greets what connects, and lets one front end in at a time."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from typing import NamedTuple

import msgspec

from twostroke.core.errors import (
    ConfigError,
    EngineDeadError,
    EngineError,
    ErrorMessage,
    ShuttingDownError,
    TwostrokeError,
)
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.engine.process.handshake import EngineRefused
from twostroke.engine.workers.address import Address, watch_connection
from twostroke.engine.workers.greeting import (
    GREETING_BYTES,
    GREETING_SECONDS,
    PROTOCOL,
    Challenge,
    FrontEndGreeting,
    draw_nonce,
    is_proof,
    prove,
)

logger = logging.getLogger(__name__)
MAX_GREETED_AT_ONCE = 16  # what connects beyond is hung up on
CLOSE_SECONDS = 1.0


class Guest(NamedTuple):
    """A front end that was let in, and waits for its welcome.

    Attributes:
        proof: For the welcome: that this worker knows the token.
        ahead: Seconds by which its clock is ahead of this machine's.
    """

    connection: socket.socket
    address: Address
    proof: bytes
    ahead: float


class WorkerListener:
    """Accepts on a thread of its own; each connection is greeted on another.

    Args:
        bound: Bound; listens from here on.
        token: Empty: whoever reaches the port is let in.
        version: The worker's twostroke; front ends of another are refused.
    """

    def __init__(self, bound: socket.socket, token: bytes, version: str) -> None:
        self._socket, self._token, self._version = bound, token, version
        self._guests: queue.SimpleQueue[Guest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._guest: Guest | None = None  # the one that is served
        self._closing = False
        self._greeted = threading.BoundedSemaphore(MAX_GREETED_AT_ONCE)
        bound.listen(MAX_GREETED_AT_ONCE)
        threading.Thread(target=self._accept, name="twostroke-listen", daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(*self._socket.getsockname()[:2])

    def next_guest(self) -> Guest | None:
        """Wait for a front end; ``None`` once the listener is closed."""
        return None if self._closing else self._guests.get()

    def let_go(self, guest: Guest) -> None:
        """The front end is served no more; another may come."""
        guest.connection.close()
        with self._lock:
            self._guest = None

    def close(self) -> None:
        """Let nobody in any more. May be called by a signal's handler."""
        self._closing = True
        self._guests.put(None)

    def _accept(self) -> None:
        while True:
            try:
                connection, (host, port, *_) = self._socket.accept()
            except OSError:
                logger.exception("a connection cannot be accepted")
                time.sleep(CLOSE_SECONDS)  # too many files are open, say
                continue
            if not self._greeted.acquire(blocking=False):
                connection.close()
                continue
            arguments = connection, Address(host, port)
            threading.Thread(target=self._greet, args=arguments, daemon=True).start()

    def _greet(self, connection: socket.socket, address: Address) -> None:
        try:
            watch_connection(connection)
            guest = self._ask(connection, address)
            connection.settimeout(None)
            self._let_in(guest)
        except TwostrokeError as error:
            logger.warning("%s is refused: %s", address, error)
            _refuse(connection, error)
        except OSError:
            connection.close()
        finally:
            self._greeted.release()

    def _ask(self, connection: socket.socket, address: Address) -> Guest:
        """Have a front end say who it is.

        Raises:
            TwostrokeError: It is not one for this worker.
        """
        nonce, asked_at = draw_nonce(), time.monotonic()
        connection.settimeout(GREETING_SECONDS)
        connection.sendall(encode_frame(Challenge(PROTOCOL, nonce)))
        data = receive_frame(connection, GREETING_BYTES, asked_at + GREETING_SECONDS)
        if data is None:
            raise EngineError(f"it did not say who it is within {GREETING_SECONDS:g} s")
        try:
            greeting = msgspec.msgpack.decode(data, type=FrontEndGreeting)
        except msgspec.DecodeError as error:
            raise EngineError("what it says is no greeting of a front end") from error
        if greeting.protocol != PROTOCOL:
            raise ConfigError(
                f"the front end greets by protocol {greeting.protocol}, this worker by {PROTOCOL}",
                hint="install one version of twostroke",
            )
        if not is_proof(greeting.proof, self._token, "front end", nonce, greeting.nonce):
            raise ConfigError(
                "the front end has another token than this worker",
                hint="give both the same --token-file",
            )
        if greeting.version != self._version:
            raise ConfigError(
                f"the front end is twostroke {greeting.version}, this worker {self._version}",
                hint="install one version",
            )
        proof = prove(self._token, "worker", nonce, greeting.nonce)
        ahead = greeting.now - (asked_at + time.monotonic()) / 2
        return Guest(connection, address, proof, ahead)

    def _let_in(self, guest: Guest) -> None:
        with self._lock:
            if self._closing:
                raise ShuttingDownError("the worker is shutting down", hint="use another worker")
            if (other := self._guest) is not None:
                raise EngineDeadError(
                    f"the worker serves another front end, {other.address}",
                    hint="give each router workers of its own, or end the other router",
                )
            self._guest = guest
        self._guests.put(guest)


def _refuse(connection: socket.socket, error: TwostrokeError) -> None:
    """Say why, and hang up once the other side has had time to read it."""
    with contextlib.suppress(OSError):
        connection.settimeout(CLOSE_SECONDS)
        connection.sendall(encode_frame(EngineRefused(ErrorMessage.of(error))))
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + CLOSE_SECONDS
        while connection.recv(2**12) and time.monotonic() < deadline:
            pass  # unread bytes would make the close a reset, which drops the answer
    connection.close()
