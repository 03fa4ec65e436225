"""Traces as CSV files: when requests arrived, and how long they and their answers were."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from twostroke.core.errors import ConfigError
from twostroke.core.files import bounded_lines, open_at_once, reason

TRACE_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
# Of one prompt or answer: beyond every context, and small enough to add up and to draw.
MAX_TOKENS = 10**9


def open_trace(path: Path) -> TextIO:
    """The file as the ``csv`` module wants it. Raises OSError."""
    return open(path, newline="", encoding="utf-8-sig", opener=open_at_once)


def read_trace(path: Path) -> Iterator[tuple[float, int, int]]:
    """Arrival in seconds, prompt length and output length of each row of a CSV file with a header.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or holds what is no number.
    """
    try:
        with open_trace(path) as file:
            reader = csv.reader(bounded_lines(file))
            header = next(reader, [])
            if missing := [name for name in TRACE_COLUMNS if name not in header]:
                raise ConfigError(
                    f"{path} has no column {missing[0]}",
                    hint=f"it needs {', '.join(TRACE_COLUMNS)}",
                )
            places = [header.index(name) for name in TRACE_COLUMNS]
            for row in reader:
                if row:
                    yield _trace_row(
                        path,
                        reader.line_num,
                        [row[column] if column < len(row) else "" for column in places],
                    )
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"cannot read the trace {path}: {reason(error)}", hint="give another --trace-path"
        ) from error


def _trace_row(path: Path, line: int, row: list[str]) -> tuple[float, int, int]:
    arrived_at, prefill, decode = row
    try:
        arrival, lengths = float(arrived_at), (int(prefill), int(decode))
        if not math.isfinite(arrival) or min(lengths) < 1 or max(lengths) > MAX_TOKENS:
            raise ValueError(f"times are finite, lengths from 1 to {MAX_TOKENS:,}")
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {line}: {reason(error)}", hint="mend or remove the line"
        ) from error
    return arrival, *lengths
