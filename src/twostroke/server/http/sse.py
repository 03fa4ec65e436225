"""Server-sent events, and work that ends when its client leaves. The hot path: a write per step.

A step's outputs are turned into frames and written in the very call that brings them to the event
loop: no task wakes up, no layer is passed. Where that must wait (the client is slow), and where the
server has no such way, a task sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twostroke.http.chunk_writer import WRITE_CHUNK, WriteChunk

T = TypeVar("T")
EVENTS = "text/event-stream"
_ENCODER = msgspec.json.Encoder()


def event(value: object) -> bytes:
    """One event that carries ``value`` as JSON."""
    return b"data: " + _ENCODER.encode(value) + b"\n\n"


async def run_while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, abort: Callable[[], None]
) -> T | None:
    """The result of ``work``; ``None`` if the client left first.

    A client that leaves is noticed at once, not at the next write: ``receive`` wakes up.

    Args:
        abort: Called at the end, whichever came first.
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
            # Not to outlive its request.
            await asyncio.wait((task,))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends frames as they are pushed.

    The response starts with the first frame: a request that fails before it gets its proper status.
    A failure after that must arrive as a frame.

    Args:
        abort: Ends the generation; called when the client leaves, and at the end.
        media_type: For dialects whose frames are no events.

    Attributes:
        num_kept_bytes: What the client has not taken yet.
    """

    def __init__(
        self,
        abort: Callable[[], None],
        headers: Mapping[str, str] | None = None,
        media_type: str = EVENTS,
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self._abort = abort
        self._write: WriteChunk = _not_now
        self._kept: list[bytes] = []
        self.num_kept_bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._due = asyncio.Event()  # there is something for the task to send
        # Proxies such as nginx would hold events back.
        self.init_headers(
            {"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})}
        )

    def push(self, frame: bytes) -> None:
        """Send complete events, in order: now, or as soon as the client takes what is kept."""
        if not self._write(frame):
            self._write = _not_now
            self._keep(frame)

    def end(self, frame: bytes) -> None:
        """Send the last events, in one write with the end of the body."""
        self._write = _not_now
        self._ended = True
        self._keep(frame)

    def fail(self, error: Exception) -> None:
        """Have the response raise ``error``, which then gets its status; before any ``push``."""
        self._error = error
        self._due.set()

    def _keep(self, frame: bytes) -> None:
        self._kept.append(frame)
        self.num_kept_bytes += len(frame)
        self._due.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write: WriteChunk = (scope.get("extensions") or {}).get(WRITE_CHUNK, _not_now)
        await run_while_connected(self._send(send, write), receive, self._abort)

    async def _send(self, send: Send, write: WriteChunk) -> None:
        await self._due.wait()
        if self._error is not None:
            raise self._error
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        ended = False
        while not ended:
            await self._due.wait()
            self._due.clear()
            body, ended = b"".join(self._kept), self._ended
            self._kept.clear()
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            self.num_kept_bytes -= len(body)
            if not self._due.is_set():
                self._write = write  # nothing is kept, so frames may go past it


def _not_now(_: bytes) -> bool:
    return False
