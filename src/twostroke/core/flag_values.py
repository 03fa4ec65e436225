"""The check of a flag's value, for all options from which the command line has its flags."""

from __future__ import annotations

from twostroke.core.errors import ConfigError


def require(condition: bool, flag: str, value: object, allowed: str) -> None:
    """Raise ``ConfigError`` for a flag whose value is not allowed."""
    if not condition:
        raise ConfigError(
            f"{flag} must be {allowed}, got {value!r}",
            hint=f"give {flag} {allowed}, or leave it out",
        )
