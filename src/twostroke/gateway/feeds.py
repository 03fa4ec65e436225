"""Feeds that stay open and are looked after many times a second: each costs the event loop time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import Caller

MAX_FEEDS = 32
MAX_OF_ONE_KEY = 8  # so that a key which watches too much leaves room for others and for the admin


class Feeds:
    """Counts the open feeds of one server. A key that has none may always open one."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def counted(self, frames: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        """Yield ``frames`` while counting the feed as open.

        Raises:
            QueueFullError: Too many feeds are open, or too many of this caller's.
        """
        if full := self._why_full(caller):
            raise QueueFullError(full, hint="close one of them")
        return self._count(frames, caller)

    def _why_full(self, caller: Caller) -> str | None:
        own = self._open[caller.tenant]
        if own and self._open.total() >= MAX_FEEDS:
            return f"{MAX_FEEDS} feeds of this server are open already, {own} of them with this key"
        if not caller.admin and own >= MAX_OF_ONE_KEY:
            return f"{MAX_OF_ONE_KEY} feeds of this server are open with this key already"
        return None

    async def _count(self, frames: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        if self._why_full(caller):  # of many that came at once, the last ones end here
            return
        tenant = caller.tenant
        self._open[tenant] += 1
        try:
            async for frame in frames:
                yield frame
        finally:
            self._open[tenant] -= 1
