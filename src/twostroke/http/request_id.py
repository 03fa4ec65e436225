"""Every answer names its request in ``x-request-id``, errors included; the log has it, too.

A client that sends such a header gets its own name back. The server's stays unique.
"""

from __future__ import annotations

import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Of an ASGI scope: when the call arrived, on the clock ``time.monotonic``.
ARRIVED_KEY = "twostroke.arrived"
_SCOPE_KEY = "twostroke.request_id"
# What is longer, or could forge a header or a log line, is not sent back.
_CLIENT_ID = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)
_NUM_DIGITS = 32  # of a UUID


def request_id(scope: Scope) -> str:
    """The id of the request of this ASGI scope."""
    if _SCOPE_KEY not in scope:
        scope[_SCOPE_KEY] = f"req-{uuid.uuid4().hex}"
    name: str = scope[_SCOPE_KEY]
    return name


def name_request(scope: Scope, prefix: str, separator: str = "-") -> str:
    """The id that the answer will carry: ``prefix`` and the digits of the request's first id."""
    scope[_SCOPE_KEY] = f"{prefix}{separator}{request_digits(scope)}"
    return request_id(scope)


def answer_id(scope: Scope) -> str:
    """The id that the answer's header carries: the client's, or else the server's."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _CLIENT_ID.fullmatch(value):
            text: str = value.decode()
            return text
    return request_id(scope)


def request_digits(scope: Scope) -> str:
    """What all ids of the request of this ASGI scope end with."""
    return request_id(scope)[-_NUM_DIGITS:]


class RequestIds:
    """Adds the header to every answer, and notes when a request came.

    Plain ASGI, before everything else.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # All layers have the same scope, so the name that a route gives later is seen here.
        request_id(scope)
        scope[ARRIVED_KEY] = time.monotonic()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = [h for h in message.get("headers", ()) if h[0] != b"x-request-id"]
                message["headers"] = [*others, (b"x-request-id", answer_id(scope).encode())]
            await send(message)

        await self._app(scope, receive, send_with_id)
