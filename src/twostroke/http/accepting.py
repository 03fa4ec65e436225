"""Accepts connections, also again after descriptors have run out, with one log line about it.

libuv closes what it cannot accept without a word; asyncio logs each attempt.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable

from twostroke.http.tls import ServerTls

logger = logging.getLogger(__name__)

# As asyncio has it: how long to wait for descriptors. Meanwhile clients wait in the backlog.
PAUSE_SECONDS = 1.0
LOG_SECONDS = 60.0
# Of TLS: how long a closed connection waits for the client to confirm it.
FAREWELL_SECONDS = 1.0
# Connections taken in a row, so that those which are open are served in between.
MAX_ACCEPTED_AT_ONCE = 64
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """One listening socket on the running event loop; what uvicorn asks of a server.

    Args:
        tls: Connections are encrypted with its context.
        handshake_seconds: That a client may take until they are.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ServerTls | None = None,
        handshake_seconds: float = 30.0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls, self._handshake_seconds = tls, handshake_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None
        self._logged = -LOG_SECONDS
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more; what has been accepted goes on."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Wait until what has been accepted has its protocol."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in SHORTAGES:
                    raise
                self._pause(error)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make_protocol, connection)
                return
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._handshake_seconds,
                ssl_shutdown_timeout=FAREWELL_SECONDS,
            )
        except OSError as error:  # it is gone already, or there is no descriptor for its watcher
            connection.close()
            logger.debug("a connection was lost before it began: %s", error)

    def _pause(self, error: OSError) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._resume = self._loop.call_later(PAUSE_SECONDS, self._go_on)
        if (now := time.monotonic()) - self._logged >= LOG_SECONDS:
            self._logged = now
            logger.warning(
                "new connections wait: %s (errno %d); raise the limit (ulimit -n), or let fewer"
                " clients connect. Said at most once in %g s",
                error.strerror,
                error.errno,
                LOG_SECONDS,
            )

    def _go_on(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listener.fileno(), self._accept)
