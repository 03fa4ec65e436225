"""The keywords of JSON Schema: what each has to be, and which of them are enforced.

Names are those of the drafts 4 to 2020-12. What is in neither table is refused: a keyword that
bounds an answer must not be lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# Formats of texts that the library enforces.
FORMATS = frozenset(
    (
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    )
)

# They describe, and bound nothing. So do all that begin with "x-".
ANNOTATIONS = frozenset(
    (
        "$comment",
        "$schema",
        "$vocabulary",
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
        "discriminator",
        "externalDocs",
        "xml",
        "nullable",
    )
)


def is_number(value: Any) -> bool:
    """Whether it is a number that can bound others."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _is_count(value: Any) -> bool:
    whole = is_number(value) and value == int(value)
    return whole and 0 <= value < 2**31


def _is_schema(value: Any) -> bool:
    return isinstance(value, (bool, dict))


def _are_schemas(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(_is_schema, value))


def _are_named_schemas(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_schema, value.values()))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_type(value: Any) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return isinstance(value, list) and len(value) > 0 and all(name in TYPES for name in value)


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_items(value: Any) -> bool:
    return _is_schema(value) or (isinstance(value, list) and all(map(_is_schema, value)))


def _is_bound(value: Any) -> bool:
    return isinstance(value, bool) or is_number(value)


# What is enforced: the check of each value, and what the value has to be in words.
ENFORCED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (_is_filled_list, "a list with at least one value"),
    "const": (lambda value: True, ""),
    "$ref": (_is_text, "a text"),
    "$anchor": (_is_text, "a text"),
    "$defs": (_are_named_schemas, "an object of schemas"),
    "definitions": (_are_named_schemas, "an object of schemas"),
    "anyOf": (_are_schemas, "a list of schemas"),
    "oneOf": (_are_schemas, "a list of schemas"),
    "allOf": (_are_schemas, "a list of schemas"),
    "properties": (_are_named_schemas, "an object of schemas"),
    "patternProperties": (_are_named_schemas, "an object of schemas"),
    "additionalProperties": (_is_schema, "a schema"),
    "required": (_are_texts, "a list of property names"),
    "minProperties": (_is_count, "a whole number from 0 on"),
    "maxProperties": (_is_count, "a whole number from 0 on"),
    "items": (_is_items, "a schema"),
    "prefixItems": (_are_schemas, "a list of schemas"),
    "additionalItems": (_is_schema, "a schema"),
    "minItems": (_is_count, "a whole number from 0 on"),
    "maxItems": (_is_count, "a whole number from 0 on"),
    "minLength": (_is_count, "a whole number from 0 on"),
    "maxLength": (_is_count, "a whole number from 0 on"),
    "pattern": (_is_text, "a regular expression"),
    "format": (_is_text, "a text"),
    "minimum": (is_number, "a number"),
    "maximum": (is_number, "a number"),
    "exclusiveMinimum": (_is_bound, "a number"),
    "exclusiveMaximum": (_is_bound, "a number"),
    "multipleOf": (_is_positive, "a number above 0"),
}
