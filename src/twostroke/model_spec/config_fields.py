"""Values of a ``config.json``, each checked as it is read: what a file may state, and how a refusal
names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.core.errors import ModelLoadError

# No model is near this bound, and below it no count overflows or takes long.
MOST = 2**31
CHECK = "check the file: it should be the config.json of a Hugging Face checkpoint"


class ConfigFields:
    """The fields of one file. All methods raise ModelLoadError; ``null`` is as good as missing."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MOST
    ) -> int:
        """A number between bounds; ``null`` is as good as missing."""
        value = self.raw.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"config.json: {name} is missing", hint=CHECK)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelLoadError(
                f"config.json: {name} must be an integer, got {short(value)}", hint=CHECK
            )
        if not least <= value <= most:
            raise ModelLoadError(
                f"config.json: {name} must be from {least} to {most}, got {short(value)}",
                hint=CHECK,
            )
        return value

    def optional(self, name: str) -> int | None:
        """The same where nothing is a value of its own."""
        return None if self.raw.get(name) is None else self.integer(name)

    def automatic(self, name: str, otherwise: int) -> int:
        """The same where ``"auto"``, as nothing, stands for what others make of it."""
        return otherwise if self.raw.get(name) == "auto" else self.integer(name, otherwise)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(
                f"config.json: {name} must be true or false, got {short(value)}", hint=CHECK
            )
        return value

    def items(self, name: str) -> list[Any]:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, list):
            raise ModelLoadError(
                f"config.json: {name} must be a list, got {short(value)}", hint=CHECK
            )
        return value or []

    def is_turn(self, index: int, name: str, *, period: int, offset: int) -> bool:
        """Whether layer ``index`` is one of those that come every ``{name}_period`` layers, from
        ``{name}_offset`` on.

        ``period`` and ``offset`` are the defaults.
        """
        every = self.integer(f"{name}_period", period)
        return index % every == self.integer(
            f"{name}_offset", min(offset, every - 1), least=0, most=every - 1
        )


def short(value: object) -> str:
    """A value as an error message shows it: a file may hold a book."""
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**40
        else "a number of more than 40 digits"
    )
    return text if len(text) <= 60 else text[:57] + "..."
