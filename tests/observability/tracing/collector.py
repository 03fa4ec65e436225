"""A collector of traces on loopback: takes OTLP over HTTP, and decodes it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.server.running import wait_until


class Collector:
    """What has come in.

    Attributes:
        spans: In the order in which they came.
        resource: Attributes of the latest resource.
        status: What it answers.
    """

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.num_calls = 0
        self.paths: set[str] = set()
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}

    def take(self, path: str, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        self.paths.add(path)
        for of_resource in message.resource_spans:
            self.resource = values(of_resource.resource.attributes)
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def traces(self) -> dict[str, list[Span]]:
        """Spans by the id of their trace."""
        found: dict[str, list[Span]] = {}
        for span in [*self.spans]:
            found.setdefault(span.trace_id.hex(), []).append(span)
        return found

    def trace(self, response: str) -> list[Span]:
        """The spans of the trace that an answer's ``traceresponse`` names, the request's first."""
        trace_id = response.split("-")[1]
        wait_until(lambda: trace_id in self.traces(), 10)
        spans = self.traces()[trace_id]
        return sorted(spans, key=lambda span: span.span_id.hex() != response.split("-")[2])


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as Python values."""
    pairs: list[KeyValue] = [*attributes]
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind or "string_value")


def event_names(span: Span) -> list[str]:
    return [event.name for event in span.events]


@contextmanager
def running_collector() -> Iterator[Collector]:
    """A collector that listens on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.num_calls += 1
            if collector.status == 200:
                collector.take(self.path, body)
            self.send_response(collector.status)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
