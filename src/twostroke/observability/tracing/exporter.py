"""Traces that have ended go to a collector from a thread of their own.

Serving never waits for it: a trace is put into a bounded queue, and one that finds it full is
dropped. While the collector does not answer, one line in the log says so.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from twostroke.observability.tracing.trace import RequestTrace

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import ReadableSpan

    from twostroke.observability.tracing.spans import SpanMaker

logger = logging.getLogger(__name__)

MAX_WAITING = 4096  # traces
BATCH_SPANS = 512
CLOSE_SECONDS = 2.0
# Of what sends, encodes attributes, and reads a caller's ``tracestate``.
LIBRARY_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.common._internal",
    "opentelemetry.trace.span",
)


class TraceExporter:
    """Makes spans of traces, and sends them.

    Args:
        endpoint, model_name, slow_ttft, batch_seconds: See ``Tracer``.
    """

    def __init__(
        self, endpoint: str, model_name: str, slow_ttft: float | None, batch_seconds: float
    ) -> None:
        self._batch_seconds = batch_seconds
        self._endpoint = traces_url(endpoint)
        self._model_name = model_name
        self._slow_ttft = slow_ttft
        self._waiting: queue.Queue[RequestTrace | None] = queue.Queue(MAX_WAITING)
        self._num_lost = 0  # spans, since the collector answered last
        self._is_failing = False
        self._closing = threading.Event()
        self._library: OTLPSpanExporter | None = None
        self._thread = threading.Thread(target=self._run, name="twostroke-traces", daemon=True)
        self._thread.start()

    def put(self, trace: RequestTrace) -> None:
        """Take a trace that has ended; any thread may call this."""
        if self._slow_ttft is None or is_notable(trace, self._slow_ttft):
            try:
                self._waiting.put_nowait(trace)
            except queue.Full:
                self._num_lost += 1

    def close(self) -> None:
        """Send what waits, if that takes no longer than two seconds."""
        self._closing.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            self._waiting.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive() and self._library is not None:
            # Ends its wait between two tries.
            self._library.shutdown()  # type: ignore[no-untyped-call]

    def _run(self) -> None:
        # The library reports each try; one line of ours says it all, with the reason from here.
        reason = FirstMessage()
        for name in LIBRARY_LOGGERS:
            logging.getLogger(name).addFilter(reason)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            from twostroke.observability.tracing.spans import SpanMaker

            self._library = library = OTLPSpanExporter(self._endpoint)
            maker = SpanMaker(self._model_name)
            last = False
            while not last:
                batch, last = self._next_batch(maker)
                if batch:
                    self._export(library, batch, reason)
        except MemoryError:
            raise
        except Exception:
            # Whatever it is: serving goes on without traces.
            logger.exception("traces are no longer exported")
        finally:
            for name in LIBRARY_LOGGERS:
                logging.getLogger(name).removeFilter(reason)

    def _next_batch(self, maker: SpanMaker) -> tuple[list[ReadableSpan], bool]:
        """Spans to go together; ``True`` if they are the last."""
        spans: list[ReadableSpan] = []
        deadline: float | None = None
        while len(spans) < BATCH_SPANS:
            try:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                trace = self._waiting.get(timeout=wait)
            except queue.Empty:
                break
            if trace is None:
                return spans, True
            try:
                spans += maker.spans(trace)
            except MemoryError:
                raise
            except Exception:  # the next ones may be in order
                logger.exception("a trace was lost, of which no spans could be made")
            if deadline is None and not self._closing.is_set():
                deadline = time.monotonic() + self._batch_seconds
        return spans, False

    def _export(
        self, library: OTLPSpanExporter, batch: list[ReadableSpan], reason: FirstMessage
    ) -> None:
        reason.text = ""
        succeeded = library.export(batch).name == "SUCCESS"
        if not succeeded:
            self._num_lost += len(batch)
            if not self._is_failing:
                self._is_failing = True
                logger.warning(
                    "%s takes no traces (%s); they are dropped until it does, and requests are"
                    " served as before",
                    *(self._endpoint, reason.text or "no answer"),
                )
        elif self._is_failing:
            self._is_failing = False
            logger.info("%s takes traces again; %d were lost", self._endpoint, self._num_lost)
            self._num_lost = 0


class FirstMessage(logging.Filter):
    """Keeps a logger silent on the thread that made this, and what it would have said first."""

    text = ""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:  # another exporter's
            return True
        self.text = self.text or record.getMessage()
        return False


def traces_url(endpoint: str) -> str:
    """Where traces are posted: an address without a path is a collector's, with its usual path."""
    parts = urlsplit(endpoint)
    return parts._replace(path="/v1/traces").geturl() if parts.path in ("", "/") else endpoint


def is_notable(trace: RequestTrace, slow_ttft: float) -> bool:
    """Whether the first token took this many seconds, or the request failed, if in one engine.

    A request that ended without a token took as long as it lasted.
    """
    if trace.status >= 500 or any(attempt.has_failed for attempt in trace.attempts):
        return True
    for timeline in trace.samples():
        if timeline.message:
            return True
        first = timeline.first_token
        if first is None:
            first = trace.ended if timeline.ended is None else timeline.ended
        if first - timeline.arrival >= slow_ttft:
            return True
    return False
