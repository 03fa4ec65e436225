"""How a stream of this API ends: with ``[DONE]``, after an error as well."""

from __future__ import annotations

from twostroke.server.http.errors import encode_error

DONE = b"data: [DONE]\n\n"


def failure_events(error: Exception) -> bytes:
    """The last events of a stream that fails in the middle."""
    return b"data: " + encode_error(error) + b"\n\n" + DONE
