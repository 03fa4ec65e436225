"""One log line per HTTP request, once its answer has been sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.http.request_id import answer_id, request_id
from twostroke.observability.json_log import FIELDS, REQUEST_ID, SPAN_ID, TRACE_ID
from twostroke.observability.tracing.trace import trace_of

LOGGER = "twostroke.access"


class AccessLog:
    """Writes the lines. Plain ASGI, before everything else.

    Args:
        is_loading: While this is so, refusals with a 503 are not logged: load balancers ask
            several times a second.
    """

    def __init__(self, app: ASGIApp, is_loading: Callable[[], bool]) -> None:
        self._app = app
        self._is_loading = is_loading
        self._logger = logging.getLogger(LOGGER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 499  # as nginx calls a client that left before its answer began
        began = time.monotonic()

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            if status != 503 or not self._is_loading():
                self._write(scope, status, time.monotonic() - began)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        names = dict.fromkeys((request_id(scope), answer_id(scope)))
        host, _ = scope.get("client") or ("-", 0)
        path = quote(scope["path"])
        fields = {
            "client": host,
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
            "answer_id": answer_id(scope),
        }
        trace = trace_of(scope)
        self._logger.info(
            '%s "%s %s" %d %.3fs %s',
            *(host, scope["method"], path, status, seconds, " ".join(names)),
            extra={
                REQUEST_ID: request_id(scope),
                TRACE_ID: trace.trace_id,
                SPAN_ID: trace.span_id,
                FIELDS: fields,
            },
        )
