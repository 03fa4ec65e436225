"""Every answer names its request in ``x-request-id``, errors included; the log has it, too."""

from __future__ import annotations

import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SCOPE_KEY = "twostroke.request_id"


def request_id(scope: Scope) -> str:
    """The id of the request of this ASGI scope."""
    name: str = scope.setdefault(_SCOPE_KEY, f"req-{uuid.uuid4().hex}")
    return name


def name_request(scope: Scope, prefix: str) -> str:
    """The id that the answer will carry: ``prefix`` and the digits of the request's first id."""
    scope[_SCOPE_KEY] = f"{prefix}-{request_id(scope).rpartition('-')[2]}"
    return request_id(scope)


class RequestIds:
    """Adds the header to every answer that has none. Plain ASGI, before everything else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # All layers have the same scope, so the name that a route gives later is seen here.
        request_id(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if not any(name == b"x-request-id" for name, _ in headers):
                    headers.append((b"x-request-id", request_id(scope).encode()))
                message["headers"] = headers
            await send(message)

        await self._app(scope, receive, send_with_id)
