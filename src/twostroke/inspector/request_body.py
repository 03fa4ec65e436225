"""Bodies of questions that pages ask, read up to a limit."""

from __future__ import annotations

from starlette.requests import Request

from twostroke.core.errors import InvalidRequestError


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request.

    Args:
        limit: Bytes.

    Raises:
        InvalidRequestError: It is larger.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise InvalidRequestError(f"the body has more than {limit:,} bytes")
    return body
