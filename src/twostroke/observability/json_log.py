"""Log lines as JSON, all of one schema, for what collects logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
FIELDS = "fields"  # of a record's ``extra``: what a line says beside its text
REQUEST_ID = "request_id"
TRACE_ID, SPAN_ID = "trace_id", "span_id"


class LoggedError(msgspec.Struct, frozen=True):
    """An exception: its type, its message, and where it came from."""

    type: str
    message: str
    stack: str


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line.

    Attributes:
        time: In UTC, as RFC 3339 writes it, to the millisecond.
        level: ``debug``, ``info``, ``warning``, ``error`` or ``critical``.
        logger: ``twostroke.access`` for HTTP requests, ``twostroke.requests`` for generations,
            else the module.
        message: The message, as in a log of text.
        request_id: The id that step events have; for a generation also that of its answer.
        trace_id, span_id: Of the request's span, where it is traced.
        fields: What the message says, as values.
        error: The exception that it is about.
    """

    time: str
    level: str
    logger: str
    message: str
    request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    fields: dict[str, Any] = {}
    error: LoggedError | None = None


class JsonFormatter(logging.Formatter):
    """Makes each record one line of JSON; nothing in it can break the line."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = LogLine(
            time=time.replace("+00:00", "Z"),
            level=record.levelname.lower(),
            logger=record.name,
            message=_clean(record.getMessage()),
            request_id=getattr(record, REQUEST_ID, ""),
            trace_id=getattr(record, TRACE_ID, ""),
            span_id=getattr(record, SPAN_ID, ""),
            fields=_clean_values(getattr(record, FIELDS, {})),
            error=self._error(record),
        )
        return msgspec.json.encode(line).decode()

    def _error(self, record: logging.LogRecord) -> LoggedError | None:
        if not record.exc_info or record.exc_info[0] is None:
            return None
        kind, error, _ = record.exc_info
        stack = self.formatException(record.exc_info)
        return LoggedError(kind.__name__, _clean(str(error)), _clean(stack))


def _clean_values(values: Mapping[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, str):
            value = _clean(value)
        elif isinstance(value, Mapping):
            value = _clean_values(value)
        cleaned[_clean(name)] = value
    return cleaned


def _clean(text: str) -> str:
    """The text without lone surrogates, which JSON in UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def log_to_stderr(level: str, form: LogFormat) -> None:
    """Write all that is logged, from ``level`` on, to stderr as text or as JSON."""
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=level.upper(), format=layout, force=True)
    if form == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
