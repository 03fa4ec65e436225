"""Begins and ends the trace of each call of the API, and names it in the answer's head.

Calls are POST requests: what scrapes, checks health or lists models is not traced. The header of
the answer is ``traceresponse``, with which W3C's Trace Context answers ``traceparent``; it is there
where a collector gets the trace. Without a collector the notes are the stations that the inspector
shows.
"""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.http.request_id import answer_id, request_id
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import SCOPE_KEY
from twostroke.observability.tracing.tracer import Tracer

TRACE_RESPONSE = "traceresponse"


class TraceRequests:
    """Plain ASGI, before keys, limits and routes."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        trace = scope[SCOPE_KEY] = self._tracer.begin(scope["headers"])
        trace.attributes[names.URL_PATH] = scope["path"]
        status = 499  # as nginx calls a client that left before its answer began
        response = f"00-{trace.trace_id}-{trace.span_id}-01".encode()

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ())]
                trace.answer_began = time.monotonic()
                trace.attributes[names.REQUEST_STREAM] = any(
                    name == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in headers
                )
                if trace.trace_id:
                    message["headers"] = [*headers, (TRACE_RESPONSE.encode(), response)]
            await send(message)
            if message.get("body"):
                trace.wrote()

        try:
            await self._app(scope, receive, send_noting)
        except Exception:  # a bug, which is answered outside all layers
            status = 500
            raise
        finally:
            trace.attributes |= {
                names.HTTP_METHOD: scope["method"],
                names.HTTP_STATUS: status,
                names.HTTP_REQUEST_ID: [answer_id(scope)],
                names.VLLM_REQUEST_ID: request_id(scope),
            }
            trace.close(status)
