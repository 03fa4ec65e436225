"""Calls of the server's own application, without a network, on behalf of a tenant."""

from __future__ import annotations

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from twostroke.gateway.caller import BACKGROUND_KEY, Background
from twostroke.server.batches.gate import Gate

# What the access log calls the client.
CLIENT = ("batch", 0)


class InProcessTransport(httpx.AsyncBaseTransport):
    """Passes requests to the application, each once the gate lets it in."""

    def __init__(self, app: ASGIApp, gate: Gate, tenant: str) -> None:
        self._app = app
        self._gate = gate
        self._tenant = tenant

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with self._gate.enter(self._tenant) as line:
            transport = httpx.ASGITransport(
                _InBackground(self._app, line), raise_app_exceptions=False, client=CLIENT
            )
            return await transport.handle_async_request(request)


class _InBackground:
    """The application, for one call in the background."""

    def __init__(self, app: ASGIApp, background: Background) -> None:
        self._app = app
        self._background = background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[BACKGROUND_KEY] = self._background
        await self._app(scope, receive, send)


def background_client(app: ASGIApp, gate: Gate, tenant: str) -> httpx.AsyncClient:
    """A client that calls the application in the background."""
    transport = InProcessTransport(app, gate, tenant)
    return httpx.AsyncClient(transport=transport, base_url="http://batch", timeout=None)
