"""Flags whose value is a JSON object; Python callers may give a mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twostroke.core.errors import ConfigError


def read_json_object(flag: str, value: object, example: str) -> dict[str, Any]:
    """The object that a flag holds; empty without one.

    Args:
        example: A value that is right, for the hint.

    Raises:
        ConfigError: It is no JSON, or no object.
    """
    if value is None:
        return {}
    hint = f"write it as {example}"
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{flag} is no JSON: {error}", hint=hint) from error
    if not isinstance(value, Mapping):
        raise ConfigError(f"{flag} must be a JSON object", hint=hint)
    return {str(name): item for name, item in value.items()}
