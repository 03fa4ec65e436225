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
from twostroke.core.files import reason
from twostroke.core.network.address import Address, bind, watch_connection
from twostroke.core.network.proofs import draw_nonce, is_proof, prove
from twostroke.engine.process.frames import encode_frame, receive_frame
from twostroke.engine.process.handshake import EngineRefused
from twostroke.engine.workers.greeting import (
    GREETING_BYTES,
    GREETING_SECONDS,
    PROTOCOL,
    UNREADABLE,
    Challenge,
    FrontEndGreeting,
    clock_name,
)

logger = logging.getLogger(__name__)
_GREETINGS = msgspec.msgpack.Decoder(FrontEndGreeting)
MAX_GREETED_AT_ONCE = 16
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
        token: Empty: every connection to the port is let in.
        version: The worker's twostroke; front ends of another are refused.
    """

    def __init__(self, bound: socket.socket, token: bytes, version: str) -> None:
        self._socket, self._token, self._version = bound, token, version
        self._guests: queue.SimpleQueue[Guest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._guest: Guest | None = None  # the one that is served
        self._open = self._closing = self._crowded = False
        self._greeted: dict[socket.socket, None] = {}  # the oldest first
        bound.listen(MAX_GREETED_AT_ONCE)
        threading.Thread(target=self._accept, name="twostroke-listen", daemon=True).start()

    @property
    def address(self) -> Address:
        return Address(*self._socket.getsockname()[:2])

    def next_guest(self) -> Guest | None:
        """Let front ends in, and wait for one; ``None`` once the listener is closed."""
        self._open = True
        return None if self._closing else self._guests.get()

    def let_go(self, guest: Guest) -> None:
        """The front end is served no more; another may come."""
        guest.connection.close()
        with self._lock:
            self._guest = None

    def close(self) -> None:
        """Let no connection in any more. May be called by a signal's handler."""
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
            self._make_room(connection)
            arguments = connection, Address(host, port)
            try:
                threading.Thread(target=self._greet, args=arguments, daemon=True).start()
            except RuntimeError:  # there are too many threads on this machine
                logger.exception("%s cannot be greeted", arguments[1])
                self._hang_up(connection)

    def _make_room(self, newcomer: socket.socket) -> None:
        """Greet it, too; where too many are greeted, the one that came first has to go.

        Who says nothing holds a place until others want it, so silence keeps no router out.
        """
        with self._lock:
            if len(self._greeted) >= MAX_GREETED_AT_ONCE:
                oldest = next(iter(self._greeted))
                del self._greeted[oldest]
                with contextlib.suppress(OSError):  # it has gone by itself
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
                if not self._crowded:
                    logger.warning("more connect than are greeted at once: the oldest are hung up")
                self._crowded = True
            self._greeted[newcomer] = None

    def _greet(self, connection: socket.socket, address: Address) -> None:
        try:
            watch_connection(connection)
            guest = self._ask(connection, address)
            connection.settimeout(None)
            self._let_in(guest)
            return
        except TwostrokeError as error:
            if connection in self._greeted:  # else it was hung up on, which is said once for all
                level = logging.WARNING if self._open else logging.DEBUG
                logger.log(level, "%s is refused: %s", address, error)
                _refuse(connection, error)
        except OSError as error:
            logger.debug("%s has gone: %s", address, error)
        except Exception:
            logger.exception("%s cannot be greeted", address)
        self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        with self._lock:  # before it is closed: its number may be another's then
            self._greeted.pop(connection, None)
            self._crowded = self._crowded and bool(self._greeted)
        connection.close()

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
            greeting = _GREETINGS.decode(data)
        except UNREADABLE as error:
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
        if greeting.clock and greeting.clock == clock_name():
            ahead = 0.0  # exactly, however long the greeting took
        return Guest(connection, address, proof, ahead)

    def _let_in(self, guest: Guest) -> None:
        with self._lock:
            if guest.connection not in self._greeted:
                raise ConnectionAbortedError("it was hung up on")
            if self._closing:
                raise ShuttingDownError("the worker is shutting down", hint="use another worker")
            if not self._open:
                message = "the worker is loading its model"
                raise EngineDeadError(message, hint="wait until it has")
            if (other := self._guest) is not None:
                raise EngineDeadError(
                    f"the worker serves another front end, {other.address}",
                    hint="give each router workers of its own, or end the other router",
                )
            del self._greeted[guest.connection]
            self._guest = guest
        self._guests.put(guest)


def listen_on(address: Address, token: bytes, version: str) -> WorkerListener:
    """Listen on an address; front ends are let in from the first ``next_guest`` on.

    Raises:
        ConfigError: That cannot be: another listens there, say.
    """
    try:
        bound = bind(address)
        try:
            return WorkerListener(bound, token, version)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address}: {reason(error)}",
            hint="give an address of this machine and a free port as --listen",
        ) from error


def _refuse(connection: socket.socket, error: TwostrokeError) -> None:
    """Say why, and give the other side time to read it before it is hung up on."""
    with contextlib.suppress(OSError):
        connection.settimeout(CLOSE_SECONDS)
        connection.sendall(encode_frame(EngineRefused(ErrorMessage.of(error))))
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + CLOSE_SECONDS
        while connection.recv(2**12) and time.monotonic() < deadline:
            pass  # unread bytes would make the close a reset, which drops the answer
