"""Every answer names its request in ``x-request-id``, errors included: what a client can quote, and
the log knows.
"""

from __future__ import annotations

import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_KEY = "twostroke.request_id"


def request_id(scope: Scope) -> str:
    """The id of the request of this ASGI scope."""
    known: str = scope.setdefault(_KEY, f"req-{uuid.uuid4().hex}")
    return known


def name_request(scope: Scope, prefix: str) -> str:
    """Give it the id that its answer will carry as ``id``: ``prefix`` and the same digits as
    before.
    """
    scope[_KEY] = f"{prefix}-{request_id(scope).rpartition('-')[2]}"
    return request_id(scope)


class RequestIds:
    """Adds the header to every answer that has none. Plain ASGI, before everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The scope is the same object for all layers, so that whatever names the request later is
        # seen here.
        request_id(scope)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", request_id(scope).encode()))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, named)
