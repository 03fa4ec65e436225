"""JSON values that may be large: measured without going through them, written piece by piece.

Python's JSON encoder in C keeps all other threads from running: a megabyte of numbers takes it
50 ms. Large values are written by the one in Python, beside which the event loop gets its turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# What is no larger is gone through within a millisecond.
MANY_VALUES = 256
MANY_CHARS = 20_000


def is_large(value: object) -> bool:
    """Whether a value holds more than ``MANY_VALUES`` others or ``MANY_CHARS`` characters."""
    num_values = num_chars = 0
    rest = [value]
    while rest and num_values <= MANY_VALUES and num_chars <= MANY_CHARS:
        item = rest.pop()
        num_values += 1
        if isinstance(item, str):
            num_chars += len(item)
        elif isinstance(item, (Mapping, list, tuple)):
            if len(item) > MANY_VALUES:
                return True
            rest += item
            rest += item.values() if isinstance(item, Mapping) else ()
    return num_values > MANY_VALUES or num_chars > MANY_CHARS


def json_pieces(value: object, **options: Any) -> Iterator[str]:
    """The JSON of a value; of a large one in pieces, between which other threads may run.

    Args:
        options: Options of ``json.dumps``.
    """
    options.setdefault("ensure_ascii", False)
    if is_large(value):
        yield from json.JSONEncoder(**options).iterencode(value)
    else:
        yield json.dumps(value, **options)
