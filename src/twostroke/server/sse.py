"""Server-sent events, and work that ends when its client leaves. This is the hot path: one write per step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
_ENCODER = msgspec.json.Encoder()


def event(value: object) -> bytes:
    """One event that carries ``value`` as JSON."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


def encode(value: object) -> bytes:
    return _ENCODER.encode(value)


async def run_while_connected(work: Coroutine[Any, Any, T], receive: Receive, abort: Callable[[], None]) -> T | None:
    """The result of ``work``; ``None`` if the client left first. ``abort`` is called either way, at the end.

    A client that leaves is noticed at once, not at the next write: ``receive`` wakes up.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        abort()
        watcher.cancel()
        if not task.done():
            task.cancel()
            # The iterators that it holds are closed before the request ends.
            await asyncio.wait((task,))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends frames as they come, then ``[DONE]``.

    The response starts with the first frame: a request that fails before it gets its proper status. A failure after
    that must arrive as a frame.

    Args:
        frames: Complete events; each is one write.
        abort: Ends the generation; called when the client leaves, and at the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncIterator[bytes], abort: Callable[[], None], headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self._frames = frames
        self._abort = abort
        # Proxies such as nginx would hold events back.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(self._send_frames(send), receive, self._abort)

    async def _send_frames(self, send: Send) -> None:
        started = False
        async for frame in self._frames:
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
