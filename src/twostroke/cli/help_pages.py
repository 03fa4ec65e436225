"""How help pages look: cyclopts' own form, with texts that fill the terminal's lines."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from twostroke.core.config import EngineConfig
from twostroke.core.flags.declared import Declaration, declarations, flag_of
from twostroke.server.options import ServerOptions

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions


class HelpPages:
    """A cyclopts help formatter. Docstrings break lines for an editor; a terminal has its own."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from cyclopts.help import DefaultFormatter

        entries = []
        for entry in panel.entries:
            unwrap(entry.description)
            for name in entry.positive_names:
                if declared := _declared().get(name):
                    unit, default = declared.unit, declared.shown_default
                    entry = entry.copy(
                        metavar=unit.metavar if unit else entry.metavar,
                        default=default or entry.default,
                    )
            entries.append(entry)
        DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """The text above the panels."""
        unwrap(description)
        if description:
            console.print(description)


@cache
def _declared() -> dict[str, Declaration]:
    """What each flag of the engine and the server declares."""
    sections: list[Any] = [ServerOptions, *(each.default_factory for each in fields(EngineConfig))]
    return {
        flag_of(name): declared
        for section in sections
        for name, declared in declarations(section).items()
    }


def unwrap(description: Any) -> None:
    """Join the lines of each paragraph of a help text, in place; other renderables stay."""
    from rich.text import Text

    text = getattr(description, "primary_renderable", None)
    if isinstance(text, Text):
        joined = re.sub(r"(?<=\S)[ \t]*\n[ \t]*(?=\S)", " ", text.plain)
        text.plain = re.sub(r"\n[ \t]+", "\n", joined)
