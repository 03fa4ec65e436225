"""Recorded workloads: Azure's CSV, Mooncake's JSON lines, recordings of the live server."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from io import StringIO
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from twostroke.core.errors import ConfigError
from twostroke.core.files import MAX_LINE, bounded_lines, open_at_once, reason
from twostroke.observability.recorder import read_jsonl
from twostroke.simulator.workloads.base import RequestSpec
from twostroke.workloads.csv_trace import MAX_TOKENS, TRACE_COLUMNS, open_trace, read_trace

# File names of the named traces, and where to get them.
SOURCES = {
    "azure-conv": ("azure_splitwise_conv.csv", "https://github.com/Azure/AzurePublicDataset"),
    "azure-code": ("azure_splitwise_code.csv", "https://github.com/Azure/AzurePublicDataset"),
    "mooncake-conv": ("mooncake_conversation.jsonl", "https://github.com/kvcache-ai/Mooncake"),
    "mooncake-synthetic": ("mooncake_synthetic.jsonl", "https://github.com/kvcache-ai/Mooncake"),
}
FOLDER_VARIABLE = "TWOSTROKE_TRACES"
# Tokens that one hash of a Mooncake trace stands for.
MOONCAKE_BLOCK = 512
# Longest trace in seconds: a thousand years. Beyond it, floats are too coarse to add a step to.
MAX_SECONDS = 3e10
# Identity of prefix hits of recorded requests: a recording does not say which content they share.
CACHED_PREFIX = -1
Kind = Literal["csv", "mooncake", "recording"]
CSV_ROW: list[tuple[str, str]] = [("arrival", "f8"), ("prompt", "i8"), ("output", "i8")]
# Arrival, tokens of prompt and answer, segments.
Row = tuple[float, int, int, tuple[tuple[int, int], ...]]


class MooncakeRow(msgspec.Struct):
    """One line; ``timestamp`` in ms. A hash stands for its 512 tokens and all before them."""

    timestamp: float
    input_length: Annotated[int, msgspec.Meta(le=MAX_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]] = []


def find_trace(name: str, path: Path | None) -> Path | None:
    """The given file, or the trace's file in the folder TWOSTROKE_TRACES; ``None`` if missing."""
    if path is not None:
        return path
    folder = os.environ.get(FOLDER_VARIABLE)
    file = Path(folder) / SOURCES[name][0] if folder else None
    return file if file is not None and file.is_file() else None


def missing_trace(name: str) -> ConfigError:
    """The error for a named trace without its file."""
    file, source = SOURCES[name]
    return ConfigError(
        f"the trace {name} is not on this machine",
        hint=(
            f"get it from {source} and give --trace-path FILE, or put it as {file} into the folder"
            f" ${FOLDER_VARIABLE}"
        ),
    )


def read_specs(path: Path, max_requests: int | None = None) -> list[RequestSpec]:
    """The first ``max_requests`` requests of a trace in order of arrival, the first at time 0.

    Raises:
        ConfigError: The file cannot be read, or is in none of the formats.
    """
    kind = _kind(path)
    if kind == "csv":
        rows = _read_csv(path, max_requests)
    else:
        try:
            rows = list(_read_mooncake(path) if kind == "mooncake" else _read_recording(path))
        except OSError as error:
            raise _unreadable(path, error) from error
    rows = sorted(rows, key=itemgetter(0))
    if not rows:
        raise ConfigError(f"{path} holds no requests", hint="give a trace with at least one")
    begin, end = rows[0][0], rows[-1][0]
    if not end - begin < MAX_SECONDS:
        raise ConfigError(
            f"{path} lasts {end - begin:g} seconds",
            hint="times are seconds (Mooncake: milliseconds)",
        )
    return [
        RequestSpec(number, row[0] - begin, *row[1:])
        for number, row in enumerate(rows[:max_requests])
    ]


def _kind(path: Path) -> Kind:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            line = file.readline(2**20)
    except OSError as error:
        raise _unreadable(path, error) from error
    if not line.startswith(b"{"):
        return "csv"
    return "recording" if line.startswith(b'{"step"') else "mooncake"


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot read the trace {path}: {reason(error)}", hint="give another --trace-path"
    )


def _read_csv(path: Path, max_rows: int | None) -> Sequence[Row]:
    """The first ``max_rows`` rows and the last, in order."""
    rows = _read_clean_csv(path, max_rows)
    return [(*row, ()) for row in (read_trace(path) if rows is None else rows)]


def _read_clean_csv(path: Path, max_rows: int | None) -> Sequence[tuple[float, int, int]] | None:
    """``read_trace`` in a fifth of its time; ``None`` if it must mend a row or name an error."""
    try:
        with open_trace(path) as file:
            header = next(csv.reader([file.readline(MAX_LINE)]))
            rows = file.read()
        columns = [header.index(name) for name in TRACE_COLUMNS]
        if rows.strip():
            table = np.loadtxt(
                StringIO(rows),
                delimiter=",",
                comments=None,
                usecols=columns,
                dtype=CSV_ROW,
                ndmin=1,
            )
            if (
                np.isfinite(table["arrival"]).all()
                and min(table["prompt"].min(), table["output"].min()) > 0
                and max(table["prompt"].max(), table["output"].max()) <= MAX_TOKENS
            ):
                table = table[np.argsort(table["arrival"], kind="stable")]
                if max_rows is not None and max_rows < len(table):
                    table = np.concatenate([table[:max_rows], table[-1:]])
                clean: list[tuple[float, int, int]] = table.tolist()
                return clean
    except (OSError, ValueError, StopIteration, csv.Error):
        return None
    return None


def _read_mooncake(path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(MooncakeRow)
    identities: dict[tuple[int, int], int] = {}
    with open(path, "rb", opener=open_at_once) as file:
        for number, line in enumerate(bounded_lines(file), 1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ConfigError(
                    f"{path}, line {number}: {error}", hint="mend or remove the line"
                ) from error
            if row.input_length < 1 or row.output_length < 1:
                continue
            segments = _segments(row.hash_ids, row.input_length, identities)
            yield row.timestamp / 1000, row.input_length, row.output_length, segments


def _segments(
    hash_ids: list[int], length: int, identities: dict[tuple[int, int], int]
) -> tuple[tuple[int, int], ...]:
    """Segments of a prompt; the last hash covers the rest of it.

    Args:
        identities: By the identity of the tokens before a block, and the block's hash: a trace may
            hash a block alone, unlike Mooncake's. This function adds to it.
    """
    segments, identity = [], -1
    for start, name in zip(range(0, length, MOONCAKE_BLOCK), hash_ids):
        identity = identities.setdefault((identity, name), len(identities))
        segments.append((identity, min(MOONCAKE_BLOCK, length - start)))
    return tuple(segments)


def _read_recording(path: Path) -> Iterator[Row]:
    """Requests from a live server's step events; one that ended early keeps its shorter output."""
    arrivals: dict[str, float] = {}
    prompts: dict[str, int] = {}
    outputs: dict[str, int] = {}
    cached: dict[str, int] = {}
    for event in read_jsonl(path):
        for share in event.scheduled:
            name = share.request_id
            if share.queued_since is not None and name not in arrivals:
                arrivals[name], cached[name], outputs[name] = share.queued_since, share.start, 0
            if name not in arrivals:
                continue  # it began before the recording did
            outputs[name] += share.num_new_tokens
            if share.sampled and name not in prompts:
                prompts[name] = share.start + share.num_prompt_tokens
    for name, prompt in prompts.items():
        segments = ((CACHED_PREFIX, cached[name]),) if cached[name] else ()
        yield arrivals[name], prompt, outputs[name], segments
