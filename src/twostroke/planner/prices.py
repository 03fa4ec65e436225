"""US dollars for a device and hour: the sheets', or a file of one's own, each with its source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason
from twostroke.simulator.cost.hardware_sheet import HardwareSheet, load_hardware

MAX_PRICE = 1e6
_EXAMPLE = 'write [h100-sxm], then per_hour = 2.69, source = "our contract", date = "2026-11"'
_DATE = re.compile(
    r"(January|February|March|April|May|June|July|August|September|October|November"
    r"|December) (20[0-9]{2})"
)
GUESSED = "guessed"


@dataclass(frozen=True, slots=True)
class DevicePrice:
    """What a device costs in an hour.

    Attributes:
        source: Where the number comes from; ``guessed`` if there is none.
        date: When it was so; empty if the source does not say.
    """

    per_hour: float
    source: str
    date: str

    @property
    def mark(self) -> str:
        """The date, or that it is a guess."""
        return GUESSED if self.source == GUESSED else self.date or "undated"


class PriceList:
    """Prices by device: those of a file, else those of the sheets.

    Raises:
        ConfigError: The file cannot be read, or holds what is no price.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._own = {} if path is None else _read_prices(path)

    def price(self, sheet: HardwareSheet) -> DevicePrice:
        if sheet.name in self._own:
            return self._own[sheet.name]
        source = sheet.sources.get("price", GUESSED) if sheet.price_per_hour else GUESSED
        date = _DATE.search(source)
        return DevicePrice(sheet.price_per_hour, source, date[0] if date else "")


def prices_text(sheets: Iterable[HardwareSheet], prices: PriceList) -> str:
    """A file of prices to be edited."""
    lines = [
        "# US dollars for one device and hour, for `twostroke plan --prices FILE`.",
        '# Edit what you pay; a source of "guessed" marks every plan that stands on it.',
    ]
    for sheet in sheets:
        price = prices.price(sheet)
        lines += [
            "",
            f"[{sheet.name}]",
            f"per_hour = {price.per_hour:g}",
            f"source = {_quoted(price.source)}",
            f"date = {_quoted(price.date)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _read_prices(path: Path) -> dict[str, DevicePrice]:
    try:
        raw = tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint=_EXAMPLE) from error
    prices = {}
    for name, table in raw.items():
        prices[load_hardware(name).name] = _price(path, name, table)
    return prices


def _price(path: Path, name: str, table: object) -> DevicePrice:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path}: {name} must be a table", hint=_EXAMPLE)
    if unknown := sorted(set(table) - {"per_hour", "source", "date"}):
        raise ConfigError(f"{path}: [{name}]: unknown {unknown[0]}", hint=_EXAMPLE)
    value = table.get("per_hour")
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not isfinite(value)
        or not 0 <= value <= MAX_PRICE
    ):
        raise ConfigError(
            f"{path}: [{name}]: per_hour must be from 0 to {MAX_PRICE:,.0f}, got {value!r}",
            hint=_EXAMPLE,
        )
    words = {}
    for field, default in (("source", GUESSED), ("date", "")):
        word = table.get(field, default)
        if not isinstance(word, str) or len(word) > 500 or not word.isprintable():
            raise ConfigError(f"{path}: [{name}]: {field} must be a short text", hint=_EXAMPLE)
        words[field] = word
    return DevicePrice(float(value), words["source"] or GUESSED, words["date"])
