"""Values of a ``config.json``, each checked as it is read; a refusal names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.core.errors import ModelLoadError

# No model is near this bound, and below it no count overflows or takes long.
MAX_INTEGER = 2**31
MAX_NUMBER = 1e30
CHECK = "check the file: it should be the config.json of a Hugging Face checkpoint"


class ConfigFields:
    """The fields of one file. All methods raise ModelLoadError; ``null`` is as good as missing."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER
    ) -> int:
        """An integer from ``minimum`` to ``maximum``."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            kind = "a positive integer" if minimum > 0 else "an integer"
            raise _refusal(name, f"must be {kind}", value)
        if not minimum <= value <= maximum:
            raise _refusal(name, f"must be from {minimum} to {maximum}", value)
        return value

    def optional(self, name: str) -> int | None:
        """An integer, or ``None`` where the field is missing."""
        return None if self.raw.get(name) is None else self.integer(name)

    def automatic(self, name: str, otherwise: int) -> int:
        """An integer; ``otherwise`` where the field is missing or ``"auto"``."""
        return otherwise if self.raw.get(name) == "auto" else self.integer(name, otherwise)

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0, and below ``MAX_NUMBER``."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise _refusal(name, "must be a positive number", value)
        if value > MAX_NUMBER:
            raise _refusal(name, f"must be at most {MAX_NUMBER:g}", value)
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A number, or ``None`` where the field is missing."""
        return None if self.raw.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise _refusal(name, "must be true or false", value)
        return value

    def items(self, name: str) -> list[Any]:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, list):
            raise _refusal(name, "must be a list", value)
        return value or []

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name) or {}
        if not isinstance(value, Mapping):
            raise _refusal(name, "must be an object", value)
        return value

    def is_turn(self, index: int, name: str, *, period: int, offset: int) -> bool:
        """Whether layer ``index`` is one of those that come every ``{name}_period`` layers.

        The first is ``{name}_offset``; ``period`` and ``offset`` are the defaults.
        """
        every = self.integer(f"{name}_period", period)
        first = self.integer(f"{name}_offset", min(offset, every - 1), minimum=0, maximum=every - 1)
        return index % every == first

    def _value(self, name: str, default: object) -> object:
        value = self.raw.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"config.json: {name} is missing", hint=CHECK)
        return value


def short(value: object) -> str:
    """A value as an error message shows it: a file may hold a book."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than 40 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refusal(name: str, rule: str, value: object) -> ModelLoadError:
    return ModelLoadError(f"config.json: {name} {rule}, got {short(value)}", hint=CHECK)
