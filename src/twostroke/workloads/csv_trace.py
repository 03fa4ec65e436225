"""Traces as CSV files: when requests arrived, and how long they and their answers were."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

from twostroke.core.errors import ConfigError

TRACE_COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read_trace(path: Path) -> Iterator[tuple[float, int, int]]:
    """Arrival in seconds, prompt length and output length of each row of a CSV file with a header.

    Raises:
        ConfigError: The file cannot be read, lacks a column, or holds what is no number.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
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
            f"cannot read the trace {path}: {error}", hint="give another --trace-path"
        ) from error


def _trace_row(path: Path, line: int, row: list[str]) -> tuple[float, int, int]:
    arrived_at, prefill, decode = row
    try:
        arrival, lengths = float(arrived_at), (int(prefill), int(decode))
        if not math.isfinite(arrival) or min(lengths) < 1:
            raise ValueError("times are finite, lengths at least 1")
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {line}: {error}", hint="mend or remove the line"
        ) from error
    return arrival, *lengths
