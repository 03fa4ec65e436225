"""The header ``request-id``, by which Anthropic's clients name a request."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.http.request_id import request_digits
from twostroke.server.anthropic_shape import REQUEST_ID, anthropic_request_id, speaks_anthropic


class AnthropicRequestIds:
    """Adds ``request-id`` to the answers that need it. Plain ASGI, before everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not speaks_anthropic(scope):
            await self._app(scope, receive, send)
            return
        header = (REQUEST_ID.encode(), anthropic_request_id(request_digits(scope)).encode())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                rest = [h for h in message.get("headers", ()) if h[0] != header[0]]
                message["headers"] = [*rest, header]
            await send(message)

        await self._app(scope, receive, send_with_id)
