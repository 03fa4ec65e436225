"""What a stream of events says, however it was cut into events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

# What differs from call to call, or says of each event what it is.
_FRAME = frozenset(
    (
        *("id", "item_id", "call_id", "object", "type", "model", "created", "created_at"),
        *("completed_at", "system_fingerprint", "sequence_number", "status", "role"),
        "text_offset",
    )
)


def content_of(lines: Iterable[str]) -> dict[str, str]:
    """The strings and numbers of all events, joined by where they stand.

    Several tokens may share an event, which depends on when they come. Samples and calls are told
    apart by their ``index``.
    """
    joined: dict[str, str] = {}
    for line in lines:
        if line.startswith("data: {"):
            _join(json.loads(line.removeprefix("data: ")), "", joined)
    return joined


def _join(value: Any, path: str, joined: dict[str, str]) -> None:
    if isinstance(value, dict):
        index = value.get("index", "")
        for key, part in value.items():
            if key not in _FRAME and key != "index":
                _join(part, f"{path}.{key}{index}", joined)
    elif isinstance(value, list):
        for part in value:
            _join(part, path, joined)
    elif isinstance(value, str):
        joined[path] = joined.get(path, "") + value
    elif value is not None:
        joined[path] = joined.get(path, "") + f" {value}"
