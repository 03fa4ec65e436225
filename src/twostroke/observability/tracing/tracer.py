"""What a server needs to trace its requests: traces that begin, and those who read them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from twostroke.core.errors import ConfigError
from twostroke.observability.tracing.call_book import CallBook
from twostroke.observability.tracing.engine_timelines import EngineTraces
from twostroke.observability.tracing.exporter import TraceExporter
from twostroke.observability.tracing.timelines import TimelineObserver
from twostroke.observability.tracing.trace import RequestTrace, parent_context


class Tracer:
    """Traces of one server.

    Args:
        endpoint: Where traces go: OTLP over HTTP. None: to nobody but ``calls``.
        model_name: The model's name in the API.
        slow_ttft: Seconds; only traces whose first token took at least as long are exported, and
            those of requests that failed. None: all.
        batch_seconds: How long a trace waits for others to go with.
        calls: Keeps the stations of all calls, exported or not; by default a new one.

    Attributes:
        observer: Shows it the engine's steps, which only exported traces need.
        of_engines: Follows calls into engines of other processes; none where nothing is exported.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        model_name: str = "",
        slow_ttft: float | None = None,
        batch_seconds: float = 1.0,
        calls: CallBook | None = None,
    ) -> None:
        self.calls = calls or CallBook()
        self._followed: dict[str, RequestTrace] = {}
        self.observer = TimelineObserver(self._followed)
        self.of_engines = None if endpoint is None else EngineTraces(self._followed)
        self._exporter: TraceExporter | None = None
        if endpoint is not None:
            check_installed()
            self._exporter = TraceExporter(endpoint, model_name, slow_ttft, batch_seconds)

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """The trace of a request that has arrived; not exported if its caller's is not sampled."""
        parent = None if self._exporter is None else parent_context(headers)
        is_exported = self._exporter is not None and (parent is None or parent.sampled)
        return RequestTrace(
            parent,
            self._followed if is_exported else {},
            self._end,
            is_exported=is_exported,
            on_follow=self.calls.begin,
        )

    def close(self) -> None:
        """Export what has ended, within two seconds."""
        if self._exporter is not None:
            self._exporter.close()

    def _end(self, trace: RequestTrace) -> None:
        self.calls.end(trace)
        if self._exporter is not None and trace.trace_id:
            self._exporter.put(trace)


def check_installed() -> None:
    """Raise ConfigError unless the optional packages are there; imports none of them."""
    for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            missing = find_spec(name) is None
        except ModuleNotFoundError:
            missing = True
        if missing:
            raise ConfigError(
                f"--otlp-traces-endpoint needs the package {name}, which is not installed",
                hint="pip install 'twostroke[otel]'",
            )
