"""A response that is read from the store as fast as the client takes it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from twostroke.server.http.sse import run_while_connected


class StoredContent(Response):
    """Lines of JSON.

    Args:
        pieces: Pieces of the body; the next is asked for when the client has taken the one before.
        num_bytes: Length of the whole body, if that is known.
    """

    media_type = "application/jsonl"

    def __init__(self, pieces: AsyncIterator[bytes], num_bytes: int | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._pieces = pieces
        self.init_headers({} if num_bytes is None else {"content-length": str(num_bytes)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        await run_while_connected(self._send(send), receive, lambda: None)

    async def _send(self, send: Send) -> None:
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
