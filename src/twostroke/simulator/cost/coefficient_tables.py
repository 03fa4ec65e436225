"""Tables of coefficients in TOML files: read, merged, checked by name and value."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from twostroke.core.errors import ConfigError
from twostroke.core.files import read_text, reason

_EXAMPLE = f"see {Path(__file__).parent / 'efficiency_files' / 'default.toml'}"
# Coefficients that something is divided by, and those that may be negative. All others are 0 or
# more.
_DIVISORS = frozenset(
    ("compute", "memory", "sharpness", "one_shot", "two_shot", "ring", "share", "decode", "prefill")
) | {f"{kind}_{end}" for kind in ("decode", "prefill") for end in ("low", "high")}
_SIGNED = frozenset(("crowding", "ring_crowding"))
_MAX = 1e12

Table = TypeVar("Table")


def parse_file(path: Path) -> dict[str, Any]:
    """All of a file. Raises ConfigError."""
    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {path}: {reason(error)}",
            hint="auto, data-sheet, or a file such as `twostroke calibrate` writes",
        ) from error


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of two files, in which those of ``above`` count."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


def origins(
    tables: Mapping[str, Any], names: Sequence[str], by_format: Sequence[str], source: str
) -> dict[str, str]:
    """What each table of a file was fitted to, by its name (``gemm.fp8`` of a format's).

    Args:
        source: What tables that the file's ``[sources]`` do not name were fitted to.
    """
    own = tables.get("sources", {})
    keys = [
        key
        for name in names
        if name in tables
        for key in ([f"{name}.{each}" for each in tables[name]] if name in by_format else [name])
    ]
    return {key: str(own.get(key, own.get(key.partition(".")[0], source))) for key in keys}


def check_tables(
    raw: Mapping[str, Any],
    path: Path,
    tables: Sequence[str],
    *,
    by_format: Sequence[str],
    about: Sequence[str],
) -> None:
    """Raises ConfigError where a file holds something else than these tables, and what is about it.

    Args:
        by_format: Those of ``tables`` that hold a table for each number format.
    """
    for name, value in raw.items():
        if name not in (*tables, *about):
            raise ConfigError(f"{path}: unknown table [{name}]", hint="known: " + ", ".join(tables))
        of_formats = name in by_format and isinstance(value, dict)
        inside = [value, *value.values()] if of_formats else [value]
        if name in tables and not all(isinstance(table, dict) for table in inside):
            raise ConfigError(f"{path}: {name} must be a table of coefficients", hint=_EXAMPLE)


def read_table(kind: type[Table], raw: Mapping[str, Any], where: str) -> Table:
    """A table as the dataclass that has its coefficients. Raises ConfigError."""
    types = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(raw) - set(types)):
        raise ConfigError(
            f"{where}: unknown coefficients {', '.join(unknown)}", hint="known: " + ", ".join(types)
        )
    for name, value in raw.items():
        check_value(name, value, types[name] == "bool", where)
    try:
        return kind(**raw)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}", hint=_EXAMPLE) from error


def check_value(name: str, value: object, is_bool: bool, where: str) -> None:
    """Raises ConfigError where a coefficient cannot have this value."""
    if is_bool:
        if not isinstance(value, bool):
            raise ConfigError(
                f"{where}: {name} must be true or false, got {value!r}", hint=_EXAMPLE
            )
        return
    allowed = "a number" if name in _SIGNED else "above 0" if name in _DIVISORS else "0 or more"
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    lowest = -_MAX if name in _SIGNED else 1e-15 if name in _DIVISORS else 0.0
    if number and lowest <= value <= _MAX:  # type: ignore[operator]
        return
    raise ConfigError(f"{where}: {name} must be {allowed}, got {value!r}", hint=_EXAMPLE)
