"""The tokens of one tenant that the storage of the limits does not hold yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from twostroke.core.errors import LimitStorageError
from twostroke.engine.clients.base import ChargedTokens, OutputStream

logger = logging.getLogger(__name__)


class _EndedRequest(NamedTuple):
    tokens: int
    ended_at: float


class Tally:
    """Counts a tenant's running requests, on the event loop's thread.

    A request's tokens are written when it has ended, however it did. Until then what was reserved
    for it is ``outstanding``: the most that it can use. What a storage that is away cannot take
    stays outstanding and is written when it is back, unless its window has passed meanwhile.

    Args:
        write: Adds tokens to the tenant's window; raises LimitStorageError.
        window_seconds: Length of a window: tokens that ended longer ago count no more.
        clock: Seconds that never go back.

    Attributes:
        written: All tokens ever written from here.
    """

    def __init__(
        self,
        write: Callable[[int], Awaitable[None]],
        window_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.written = 0
        self._write = write
        self._window_seconds = window_seconds
        self._clock = clock
        self._unwritten: deque[_EndedRequest] = deque()
        self._running: dict[OutputStream, int] = {}
        self._writing: asyncio.Task[None] | None = None

    def outstanding(self) -> int:
        """Tokens that the window does not hold yet."""
        return sum(ended.tokens for ended in self._unwritten) + sum(self._running.values())

    def watch(self, stream: OutputStream, reserved: int) -> None:
        """Count a request as ``reserved`` tokens until the engine lets go of it.

        What it has really used is written then.
        """
        self._running[stream] = reserved
        stream.when_ended(lambda usage: self._settle(stream, usage))

    def charge(self, num_tokens: int) -> None:
        """Count tokens that have been used."""
        if num_tokens:
            self._unwritten.append(_EndedRequest(num_tokens, self._clock()))
            self.write_ended()

    def write_ended(self) -> None:
        """Write what has ended and is not written yet, in the background."""
        if self._unwritten and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write_all())

    async def flush(self) -> None:
        """Wait until what has ended is written, or cannot be; the log says how much could not."""
        self.write_ended()
        if self._writing is not None:
            await self._writing
        if self._unwritten:
            lost = sum(ended.tokens for ended in self._unwritten)
            logger.error("%d tokens were not counted: no answer from the storage", lost)

    def _settle(self, stream: OutputStream, usage: ChargedTokens) -> None:
        del self._running[stream]
        self.charge(usage.total)

    async def _write_all(self) -> None:
        while self._forget_past_windows():
            count = len(self._unwritten)
            tokens = sum(ended.tokens for ended in self._unwritten)
            try:
                await self._write(tokens)
            except LimitStorageError:
                return  # the storage has said so in the log, and calls when it is back
            for _ in range(count):
                self._unwritten.popleft()
            self.written += tokens

    def _forget_past_windows(self) -> bool:
        """Whether anything is left to write."""
        oldest = self._clock() - self._window_seconds
        while self._unwritten and self._unwritten[0].ended_at < oldest:
            self._unwritten.popleft()
        return bool(self._unwritten)
