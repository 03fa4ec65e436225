"""The storage of the rate limits, and what happens while it does not answer.

The first question that fails opens the circuit: until the storage answers again, every further
question is refused at once instead of waiting for a timeout of its own. One probe in the background
looks for the storage; requests never do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.aio.storage import Storage
from limits.aio.strategies import FixedWindowRateLimiter
from limits.errors import StorageError
from limits.storage import storage_from_string
from limits.util import WindowStats

from twostroke.core.errors import LimitStorageError
from twostroke.core.files import reason
from twostroke.gateway.options import MEMORY

if TYPE_CHECKING:
    from redis.asyncio import BlockingConnectionPool

NAMESPACE = "twostroke"
# A storage that does not answer must not hold up a request for longer than a second.
STORAGE_SECONDS = 0.9
# Clearly shorter: where both expire together, the client library may swallow the longer one.
CONNECTION_SECONDS = 0.7
# Between two looks for a storage that is away: what it costs all keys once it is back.
PROBE_SECONDS = 0.5
# Written by the probe: a storage that can be read and not written counts as away.
PROBE = RateLimitItemPerSecond(1, 1, NAMESPACE)
T = TypeVar("T")

logger = logging.getLogger(__name__)


class LimitStorage:
    """Counts in this process or in Redis; refuses at once while Redis is away.

    Used on one event loop. The log says once that the storage is away, and once that it is back.

    Args:
        url: A URL as ``--rate-limit-storage`` takes it.
        on_return: Called when the storage answers again.
    """

    def __init__(self, url: str, on_return: Callable[[], None]) -> None:
        self._pool = _open_pool(url)
        self._limiter = FixedWindowRateLimiter(_open_storage(url, self._pool))
        self._on_return = on_return
        self._away_since: float | None = None
        self._probing: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Future[Any]] = set()

    async def hit(self, item: RateLimitItem, *names: str, cost: int = 1) -> bool:
        """Add ``cost`` to a window; whether it is within the limit still.

        Raises:
            LimitStorageError: The storage does not answer; it may have counted nevertheless.
        """
        return await self._ask(lambda: self._limiter.hit(item, *names, cost=cost))

    async def window(self, item: RateLimitItem, *names: str) -> WindowStats:
        """What is left of a window, and when it ends. Raises LimitStorageError."""
        return await self._ask(lambda: self._limiter.get_window_stats(item, *names))

    async def close(self) -> None:
        """Look for the storage no longer, and close the connections to it."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=STORAGE_SECONDS)
        if self._pool is not None:
            await self._pool.disconnect()

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        if self._away_since is not None:
            raise _no_answer()
        # Not asyncio.timeout: where timeouts coincide, the client library swallows a cancellation.
        task = asyncio.ensure_future(question())
        try:
            done, _ = await asyncio.wait({task}, timeout=STORAGE_SECONDS)
            if not done:
                raise TimeoutError
            return task.result()
        except (StorageError, OSError) as error:
            self._open_circuit(error)
            raise _no_answer() from error
        finally:
            if not task.done():
                self._abandon(task)

    def _abandon(self, task: asyncio.Future[Any]) -> None:
        """Its answer comes too late; whatever becomes of it is of no use."""

        def forget(ended: asyncio.Future[Any]) -> None:
            self._abandoned.discard(ended)
            if not ended.cancelled():
                ended.exception()

        self._abandoned.add(task)
        task.add_done_callback(forget)
        task.cancel()

    def _open_circuit(self, error: Exception) -> None:
        if self._away_since is not None:
            return  # a question that was under way when another one failed
        self._away_since = time.monotonic()
        logger.error(
            "the storage of the rate limits does not answer (%s): POST requests get 503 until it"
            " does",
            reason(error),
        )
        self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        while True:
            try:
                async with asyncio.timeout(STORAGE_SECONDS):
                    if self._pool is not None:
                        # Dead connections would fail one question each, long after the return.
                        await self._pool.disconnect(inuse_connections=False)
                    await self._limiter.hit(PROBE, "probe")
                break
            except (StorageError, OSError):
                await asyncio.sleep(PROBE_SECONDS)
        assert self._away_since is not None
        away = time.monotonic() - self._away_since
        self._away_since = None
        logger.warning("the storage of the rate limits answers again, after %.1f s", away)
        self._on_return()


def _no_answer() -> LimitStorageError:
    return LimitStorageError(
        "the storage of the rate limits does not answer",
        hint="try again; the server's --rate-limit-storage may be down",
    )


def _open_pool(url: str) -> BlockingConnectionPool | None:
    """Connections that this server closes; the library never closes those that it makes."""
    if url == MEMORY:
        return None
    # Imported here, since it is an optional dependency.
    from redis.asyncio import BlockingConnectionPool

    pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
        url.replace("redis+unix://", "unix://"),
        socket_connect_timeout=CONNECTION_SECONDS,
        socket_timeout=CONNECTION_SECONDS,
        timeout=CONNECTION_SECONDS,
    )
    return pool


def _open_storage(url: str, pool: BlockingConnectionPool | None) -> Storage:
    options: dict[str, Any] = {"wrap_exceptions": True}
    if pool is not None:
        options |= {"implementation": "redispy", "key_prefix": NAMESPACE, "connection_pool": pool}
    storage = storage_from_string(f"async+{url}", **options)
    assert isinstance(storage, Storage)
    return storage
