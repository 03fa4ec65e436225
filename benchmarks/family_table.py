"""Writes the table of families in docs/reference/models.md: what ``twostroke models`` lists.

python -m benchmarks.family_table
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import cyclopts

from twostroke.models.catalogue import FamilyRow, list_families, list_further_formats

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
BEGIN = "<!-- python -m benchmarks.family_table writes from here -->\n"
END = "<!-- to here -->\n"
HEAD = "| `model_type` | layers | features |\n|---|---|---|\n"
TITLES = {"compiled": "Compiled in one call:", "layer by layer": "Layer by layer:"}


def family_table() -> str:
    """Markdown: a table for each path."""
    rows = sorted(list_families(), key=lambda row: row.path)
    tables = []
    for path, of_path in groupby(rows, key=lambda row: row.path):
        lines = [
            f"| `{row.model_type}` | {', '.join(row.layers)} | {', '.join(row.features)} |\n"
            for row in of_path
        ]
        tables.append(f"{TITLES[path]}\n\n{HEAD}{''.join(lines)}")
    return "\n" + "\n".join([*tables, _formats(rows)]) + "\n"


def _formats(rows: Sequence[FamilyRow]) -> str:
    """What files there may be besides those of all families."""
    text = "All of them as safetensors, plain or quantised."
    for name, families in list_further_formats(rows).items():
        text += f" {name}: {', '.join(f'`{family}`' for family in families)}."
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False) + "\n"


def written_page(page: str) -> str:
    """The page with the table as it should be."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}{family_table()}{END}{after}"


def main() -> None:
    """Write the table anew."""
    PAGE.write_text(written_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    cyclopts.run(main)
