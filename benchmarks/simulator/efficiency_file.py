"""Coefficients as TOML, as they stand in ``simulator/cost/efficiency_files``."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from benchmarks.simulator.servers.stacks import Stack
from twostroke.simulator.cost.efficiencies import FILES

# Characters of a source's line, beside its key and quotes.
MAX_LINE = 88


def stack_table(stack: Stack) -> dict[str, Any]:
    return {"step": asdict(stack.step), "host": asdict(stack.host)}


def as_toml(tables: Mapping[str, Any]) -> str:
    """Tables of coefficients, one level of tables within each at most."""
    return "\n".join(_table_lines(tables)).lstrip("\n") + "\n"


def read(name: str) -> dict[str, Any]:
    """The tables of a shipped file."""
    tables = tomllib.loads((FILES / f"{name}.toml").read_text(encoding="utf-8"))
    return {key: value for key, value in tables.items() if isinstance(value, dict)}


def write(
    name: str,
    source: str,
    tables: Mapping[str, Any],
    devices: Sequence[str] = (),
    links: Sequence[str] = (),
    stacks: Sequence[str] = (),
) -> None:
    """Replace a shipped file of coefficients, and say so on stderr."""
    lines = _text_lines("source", source)
    for key, names in (("devices", devices), ("links", links), ("stacks", stacks)):
        if names:
            lines.append(f"{key} = [" + ", ".join(f'"{value}"' for value in names) + "]")
    lines += _table_lines(tables)
    (FILES / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {name}.toml", file=sys.stderr)


def _text_lines(key: str, text: str) -> list[str]:
    """A line of text on lines of 100 columns."""
    if len(key) + len(text) < MAX_LINE:
        return [f'{key} = "{text}"']
    wrapped = wrap(text, MAX_LINE, initial_indent="  ", subsequent_indent="  ")
    return [f'{key} = """\\', *(f"{line} \\" for line in wrapped[:-1]), f'{wrapped[-1]}"""']


def _table_lines(tables: Mapping[str, Any]) -> Iterator[str]:
    for table, values in tables.items():
        inner = {key: value for key, value in values.items() if isinstance(value, dict)}
        for key, value in inner.items():
            yield from ("", f"[{table}.{key}]", *_lines(value))
        if not inner:
            yield from ("", f"[{table}]", *_lines(values))


def _lines(values: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        key = f'"{name}"' if "." in name else name
        lines += (
            _text_lines(key, value) if isinstance(value, str) else [f"{key} = {_number(value)}"]
        )
    return lines


def _number(value: float) -> str:
    """Four digits of what was fitted; all of what was set."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else repr(float(f"{value:.4g}"))
