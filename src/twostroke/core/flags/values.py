"""Values of flags, and their checks, for all options from which the command line has its flags."""

from __future__ import annotations

import re

from twostroke.core.errors import ConfigError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s)?")


def require(condition: bool, flag: str, value: object, allowed: str) -> None:
    """Raise ``ConfigError`` for a flag whose value is not allowed."""
    if not condition:
        raise ConfigError(
            f"{flag} must be {allowed}, got {value!r}",
            hint=f"give {flag} {allowed}, or leave it out",
        )


def parse_seconds(text: str) -> float:
    """Seconds from ``40ms``, ``0.04s`` or a plain number of seconds.

    Raises:
        ValueError: It is none of these.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no time")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
