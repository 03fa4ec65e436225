"""How large a request's body may be."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.server.http.errors import BodyTooLargeError, error_response


class BodySizeLimit:
    """Refuses bodies above ``limit`` bytes, announced or not, before they are held in memory.

    Plain ASGI: Starlette's ``BaseHTTPMiddleware`` would hide that a client has left.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next(
            (value for name, value in scope["headers"] if name == b"content-length"), b"0"
        )
        if announced.isdigit() and int(announced) > self._limit:
            await error_response(self._error())(scope, receive, send)
            return
        num_received = 0

        async def counted_receive() -> Message:
            nonlocal num_received
            message = await receive()
            num_received += len(message.get("body", b""))
            if num_received > self._limit:
                # FastAPI turns any other exception of a body that it reads into a 400.
                raise HTTPException(413) from self._error()
            return message

        await self._app(scope, counted_receive, send)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body exceeds {self._limit} bytes",
            hint="send less, or start the server with a larger --max-body-size",
        )
