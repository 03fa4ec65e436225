"""Figures as a table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO) -> None:
    """Names left, numbers right."""
    table = Table(box=box.SIMPLE_HEAD, show_header=any(header), pad_edge=False)
    for column, name in enumerate(header):
        table.add_column(name, justify="right" if column else "left")
    for row in rows:
        table.add_row(*row)
    Console(file=stream).print(table)
