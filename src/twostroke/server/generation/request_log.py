"""One log line per call: the labels of its client, its tokens and seconds, how it ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from twostroke.observability.json_log import FIELDS, REQUEST_ID, SPAN_ID, TRACE_ID
from twostroke.observability.tracing.trace import NOT_TRACED, Trace

LOGGER = "twostroke.requests"


class RequestLog:
    """The line of one call, written when it has ended, if the log is switched on.

    Args:
        labels: What the client calls its end user and the like.
        trace: The trace of its HTTP request.

    Attributes:
        reasons: Why its answers ended, as far as they have.
    """

    def __init__(
        self, request_id: str, labels: Mapping[str, str], trace: Trace = NOT_TRACED
    ) -> None:
        self._trace = trace
        self.reasons: list[str] = []
        self._began = time.monotonic()
        self._request_id = request_id
        self._labels = labels
        self._written = False

    def end(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        """Write it, unless that has been done."""
        logger = logging.getLogger(LOGGER)
        if self._written or not logger.isEnabledFor(logging.INFO):
            return
        self._written = True
        # Clients choose the labels: quoted, they cannot forge a line.
        labels = "".join(f" {name}={value!r}" for name, value in self._labels.items())
        ended = ",".join(dict.fromkeys(self.reasons)) or "left"
        tokens = f"prompt={prompt_tokens} cached={cached_tokens} output={completion_tokens}"
        seconds = time.monotonic() - self._began
        fields = {
            "ended": ended,
            "prompt_tokens": prompt_tokens,
            "cached_tokens": cached_tokens,
            "output_tokens": completion_tokens,
            "seconds": round(seconds, 6),
            "labels": dict(self._labels),
        }
        logger.info(
            "%s ended=%s %s seconds=%.3f%s",
            *(self._request_id, ended, tokens, seconds, labels),
            extra={
                REQUEST_ID: self._request_id,
                TRACE_ID: self._trace.trace_id,
                SPAN_ID: self._trace.span_id,
                FIELDS: fields,
            },
        )
