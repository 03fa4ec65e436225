"""Answers as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_ENCODER = msgspec.json.Encoder()


# A client that takes nothing holds up the next piece, and with it what is counted for the answer.
PIECE_BYTES = 2**18


class WholeResponse(Response):
    """JSON that may be large: it goes in pieces, as fast as the client takes them.

    Args:
        on_sent: Called once, when the last piece is on its way or the client has left.
    """

    media_type = "application/json"

    def __init__(
        self,
        body: bytes | None,
        status: int,
        headers: Mapping[str, str],
        *,
        on_sent: Callable[[], None],
    ) -> None:
        super().__init__(body, status, headers)
        self._on_sent = on_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        body = bytes(self.body)
        try:
            await send(head)
            for start in range(0, len(body) or 1, PIECE_BYTES):
                piece, end = body[start : start + PIECE_BYTES], start + PIECE_BYTES
                await send(
                    {"type": "http.response.body", "body": piece, "more_body": end < len(body)}
                )
        finally:
            self._on_sent()


def encode_json(value: object) -> bytes:
    """JSON of a value that msgspec can write, such as a ``Struct``."""
    return _ENCODER.encode(value)


def json_response(value: object, headers: Mapping[str, str] | None = None) -> Response:
    """A 200 with ``value`` as its body."""
    return Response(_ENCODER.encode(value), 200, headers, "application/json")
