"""Several runs side by side on a terminal: a column each while they are few, else a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table

# What a comparison shows of each run: key of the JSON, title, digits.
COMPARED = (
    ("verdict", "verdict", 0),
    ("completed", "requests", 0),
    ("request_throughput", "req/s", 2),
    ("steady_output_throughput", "steady tok/s", 0),
    ("request_goodput", "goodput req/s", 2),
    ("output_throughput", "output tok/s", 0),
    ("median_ttft_ms", "TTFT p50 ms", 1),
    ("p99_ttft_ms", "TTFT p99 ms", 1),
    ("median_tpot_ms", "TPOT p50 ms", 2),
    ("p99_tpot_ms", "TPOT p99 ms", 2),
    ("mfu", "MFU", 3),
    ("mbu", "MBU", 3),
    ("kv_peak", "KV peak", 2),
    ("draft_acceptance", "drafts right", 2),
    ("tokens_per_pass", "tokens a pass", 2),
    ("dollars_per_million_tokens", "$/M tokens", 3),
)
# Where the terminal is too narrow for all columns, these are dropped, from the first on.
DROPPED_FIRST = (
    *(
        "steady_output_throughput",
        "draft_acceptance",
        "tokens_per_pass",
        "mbu",
        "completed",
        "mfu",
        "kv_peak",
        "request_throughput",
        "median_ttft_ms",
        "median_tpot_ms",
    ),
    *("output_throughput", "p99_tpot_ms"),
)
# Up to this many runs and characters of labels, each run is a column; else a row.
MAX_COLUMNS, MAX_LABEL_CHARACTERS = 6, 54
PADDING = 3

Cells = list[str]


def print_comparison(runs: Sequence[Mapping[str, Any]], stream: TextIO) -> None:
    """Print runs, given as ``fields.run_fields``."""
    console = Console(file=stream)
    shown = [item for item in COMPARED if any(run.get(item[0]) is not None for run in runs)]
    labels = [str(run["label"] or "this run") for run in runs]
    if len(runs) <= MAX_COLUMNS and sum(map(len, labels)) <= MAX_LABEL_CHARACTERS:
        rows = [[title, *_values(runs, key, digits)] for key, title, digits in shown]
        _print(console, ["", *labels], rows, 1)
        return
    names = _setting_columns(labels)
    values = {key: [_stacked(title), *_values(runs, key, digits)] for key, title, digits in shown}
    for key in DROPPED_FIRST:
        if sum(map(_width, [*names, *values.values()])) > console.width:
            values.pop(key, None)
    header, *lines = zip(*names, *values.values())
    _print(console, header, lines, len(names))


def notes_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of all runs, each once; a note that some runs lack names the first that has it."""
    labels_of: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run["notes"]):
            labels_of.setdefault(note, []).append(str(run["label"]))
    notes = []
    for note, labels in labels_of.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        notes.append(
            note if len(labels) == len(runs) or not labels[0] else f"{labels[0]}{more}: {note}"
        )
    return notes


def _setting_columns(labels: Sequence[str]) -> list[Cells]:
    """How the runs differ: a column for each flag that varies, one for reports of earlier runs.

    Labels are those of ``sweep.vary``; ``earlier.read_report`` puts the report's name before them.
    """
    settings = []
    for label in labels:
        report, _, rest = label.rpartition(": ")
        parts = [part.partition("=") for part in rest.split(", ")]
        if all(sign for _, sign, _ in parts):
            settings.append(
                {**({"run": report} if report else {}), **{name: value for name, _, value in parts}}
            )
        else:
            settings.append({"run": label})
    names = dict.fromkeys(name for setting in settings for name in setting)
    return [
        [_stacked(name.replace("_", " ")), *(setting.get(name, "-") for setting in settings)]
        for name in names
    ]


def _values(runs: Sequence[Mapping[str, Any]], key: str, digits: int) -> Cells:
    values = [run.get(key) for run in runs]
    return [
        "-" if value is None else value if isinstance(value, str) else f"{value:.{digits}f}"
        for value in values
    ]


def _stacked(title: str) -> str:
    """A heading as narrow as its longest word."""
    return title.replace(" ", "\n")


def _width(column: Cells) -> int:
    return max(len(line) for cell in column for line in cell.split("\n")) + PADDING


def _print(
    console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], num_names: int
) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(header):
        table.add_column(
            name,
            justify="left" if index < num_names else "right",
            overflow="fold",
            vertical="bottom",
        )
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False, highlight=False)
