"""What monitoring shows and what it costs: pictures of dashboards, throughput with and without."""

from __future__ import annotations

import textwrap


def narrow(text: str) -> str:
    """The same Markdown with lists and prose in lines of 100 columns; tables stay."""
    return "\n".join(
        line
        if line.startswith("|")
        else textwrap.fill(line, 100, subsequent_indent="  " if line.startswith("- ") else "")
        for line in text.splitlines()
    )
