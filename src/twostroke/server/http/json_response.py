"""Answers as JSON."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    """JSON of a value that msgspec can write, such as a ``Struct``."""
    return _ENCODER.encode(value)


def json_response(value: object) -> Response:
    """A 200 with ``value`` as its body."""
    return Response(_ENCODER.encode(value), media_type="application/json")
