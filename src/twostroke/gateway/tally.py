"""The tokens of one tenant that the storage of the limits does not hold yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from twostroke.core.errors import LimitStorageError
from twostroke.engine.clients.base import ChargedTokens, OutputStream

logger = logging.getLogger(__name__)


class Tally:
    """Counts a tenant's running requests, on the event loop's thread.

    A request's tokens are written once, when it has ended, however it did. Until then what was
    reserved for it is ``outstanding``: the most that it can use.

    Args:
        write: Adds tokens to the tenant's window.

    Attributes:
        written: All tokens ever written from here.
    """

    def __init__(self, write: Callable[[int], Awaitable[None]]) -> None:
        self.written = 0
        self._write = write
        self._unwritten = 0
        self._running: dict[OutputStream, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def outstanding(self) -> int:
        """Tokens that the window does not hold yet."""
        return self._unwritten + sum(self._running.values())

    def watch(self, stream: OutputStream, reserved: int) -> None:
        """Count a request as ``reserved`` tokens until the engine lets go of it.

        What it has really used is written then.
        """
        self._running[stream] = reserved
        stream.when_ended(lambda usage: self._settle(stream, usage))

    async def flush(self) -> None:
        """Wait until what has ended is written."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _settle(self, stream: OutputStream, usage: ChargedTokens) -> None:
        del self._running[stream]
        if usage.total:
            self._unwritten += usage.total
            task = asyncio.ensure_future(self._send(usage.total))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, tokens: int) -> None:
        try:
            await self._write(tokens)
        except LimitStorageError as error:
            logger.error("%d tokens were not counted: %s", tokens, error)
        finally:
            self._unwritten -= tokens
            self.written += tokens
