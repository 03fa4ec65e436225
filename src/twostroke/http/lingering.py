"""A transport whose end a client sees, even one that still sends: it is read on for a while.

A socket that is closed while unread bytes lie in it resets the connection, and the client's kernel
then throws the answer away. So a client that reads only once it has sent all, as urllib does, never
saw why its body was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

# What is read and thrown away of a request that has been answered: of a body, or of what is none.
MAX_BODY_BYTES = 64 * 2**20
MAX_OTHER_BYTES = 4 * 2**20
MAX_SECONDS = 10.0
# So much is thrown away in a second, of all connections together: a tenth of the event loop's time.
BYTES_PER_SECOND = 64 * 2**20


class DiscardPace:
    """When the connections of one server may read on what they throw away."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._free_at = 0.0

    def seconds_after(self, num_bytes: int) -> float:
        """How long a connection waits once it has thrown this many bytes away."""
        now = self._loop.time()
        self._free_at = max(now, self._free_at) + num_bytes / BYTES_PER_SECOND
        return self._free_at - now


class LingeringTransport(asyncio.Transport):
    """A connection's transport. ``close`` sends what was written, and says that no more follows.

    Where the client still sends, what comes is thrown away until the client closes, or bytes or
    seconds are used up. A second ``close`` closes at once.

    Args:
        num_expected: How many bytes the client may still send; asked by ``close``.
        on_linger: Called when it begins to wait for the client's end.
        pace: Shared by all connections.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        num_expected: Callable[[], int],
        on_linger: Callable[[], None],
        pace: DiscardPace,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._num_expected = num_expected
        self._on_linger = on_linger
        self._pace = pace
        self._closing = False
        self._num_left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None

    @property
    def lingers(self) -> bool:
        """Whether it only waits for the client's end."""
        return self._closing

    def close(self) -> None:
        if self.is_closing() or not (num_bytes := self._num_expected()):
            self._end()
            return
        self._closing = True
        self.discard(num_bytes)
        if self._transport.can_write_eof():  # TLS cannot; the answer says that it is the end
            self._transport.write_eof()
        if not self._transport.is_reading():
            self._transport.resume_reading()
        self._on_linger()

    def discard(self, num_bytes: int) -> None:
        """Accept only this much more, for this long; then the connection is closed."""
        self.stop_discarding()
        self._num_left = num_bytes
        self._timer = self._loop.call_later(MAX_SECONDS, self._end)

    def stop_discarding(self) -> None:
        """The request has come to its end, or the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pause is not None:
            self._pause.cancel()
            self._read_on()

    def count(self, num_bytes: int) -> None:
        """Bytes have come."""
        if self._timer is not None:
            self._num_left -= num_bytes
            if self._num_left < 0:
                self._end()
            elif self._pause is None:
                self._transport.pause_reading()
                seconds = self._pace.seconds_after(num_bytes)
                self._pause = self._loop.call_later(seconds, self._read_on)

    def _read_on(self) -> None:
        self._pause = None
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _end(self) -> None:
        self._closing = True
        self.stop_discarding()
        self._transport.close()

    # ---- as the transport has it -----------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._closing:
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def abort(self) -> None:
        self.stop_discarding()
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
