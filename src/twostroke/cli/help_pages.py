"""How help pages look: cyclopts' own form, with texts that fill the terminal's lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

# Flags whose value is a number of bytes, and so may carry a unit.
SIZE_FLAGS = frozenset(
    {
        "--files-store-size",
        "--kv-cache-memory",
        "--kv-disk-size",
        "--kv-host-memory",
        "--max-body-size",
        "--max-file-size",
        "--max-logprobs-memory",
        "--min-client-rate",
        "--responses-store-size",
        "--swap-space",
    }
)
# Those whose value is a time, and may carry one of its units.
TIME_FLAGS = frozenset({"--tpot-target"})


class HelpPages:
    """A cyclopts help formatter. Docstrings break lines for an editor; a terminal has its own."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from cyclopts.help import DefaultFormatter

        entries = []
        for entry in panel.entries:
            unwrap(entry.description)
            names = set(entry.positive_names)
            metavar = "SIZE" if SIZE_FLAGS & names else "TIME" if TIME_FLAGS & names else None
            entries.append(entry.copy(metavar=metavar) if metavar else entry)
        DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """The text above the panels."""
        unwrap(description)
        if description:
            console.print(description)


def unwrap(description: Any) -> None:
    """Join the lines of each paragraph of a help text, in place; other renderables stay."""
    from rich.text import Text

    text = getattr(description, "primary_renderable", None)
    if isinstance(text, Text):
        joined = re.sub(r"(?<=\S)[ \t]*\n[ \t]*(?=\S)", " ", text.plain)
        text.plain = re.sub(r"\n[ \t]+", "\n", joined)
