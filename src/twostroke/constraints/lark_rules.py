"""What a client's grammar in Lark's notation holds: rules that refer to rules, and JSON schemas.

The library parses it. What is read here is only what it does not bound or check: how far rules lead
through one another, and the schemas behind ``%json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from twostroke.constraints.schemas.intersections import MAX_WAYS, num_ways
from twostroke.constraints.schemas.paths import SchemaPart, longest_path
from twostroke.core.errors import InvalidRequestError

MAX_PATH = 2_000  # rules that lead through one another, groups in them included
InlineSchema = Callable[[Any, str], str]  # a schema and its path, to the JSON of the library

_ATTRIBUTES = r"(?:\[[^\]\n]*\]|\{[^}\n]*\}|\.-?\d+)?"
# Skipped is what the library's lexer reads as one. What has no end, which it refuses, is skipped up
# to where it breaks off: no search begins within it again, so every character is read once.
_PART = re.compile(
    rf"""
    (?P<skipped> "[^"\\\n]*(?:\\.[^"\\\n]*)*"? | \#[^\n]* | //[^\n]*
        | /[^/\\]*(?:\\.[^/\\]*)*/? | <[^<>\s]*>? )
    | (?P<json> %json\b )
    | (?P<options> %(?:regex|llguidance)\b )
    | (?<![^\n]) [ \t]* [!?]? (?P<rule> [A-Za-z_]\w* ) {_ATTRIBUTES} [ \t]* :
    | (?P<name> [A-Za-z_]\w* )
    | (?P<open> \( ) | (?P<close> \) ) | (?P<both> & )
    """,
    re.VERBOSE,
)


def checked_grammar(text: str, param: str, inline_schema: InlineSchema) -> str:
    """The grammar with its schemas as they are enforced.

    Raises:
        InvalidRequestError: Rules lead through too many others; or a schema cannot be enforced.
    """
    written: list[str] = []  # the grammar up to here, in pieces
    copied = position = depth = num_intersections = 0
    rule, depths, references = "", {"": 0}, {"": list[str]()}
    while (found := _PART.search(text, position)) is not None:
        position = found.end()
        match found.lastgroup:
            case "rule":
                rule, depth = found["rule"], 0
                depths.setdefault(rule, 1)
                references.setdefault(rule, [])
            case "name":
                references[rule].append(found["name"])
            case "open" | "close":
                depth += 1 if found["open"] else -1
                depths[rule] = max(depths[rule], 1 + depth)
            case "both":
                num_intersections += 1
            case "json":
                schema, end = _json_at(text, position, param)
                inlined = inline_schema(schema, f"{param}.{rule or 'start'}")
                written += [text[copied:position], " ", inlined]
                copied = position = end
            case "options":
                _, position = _json_at(text, position, param)
    _check_intersections(text, num_intersections, param)
    if (
        longest_path({name: SchemaPart(depths[name], references[name]) for name in depths})
        > MAX_PATH
    ):
        raise InvalidRequestError(
            f"{param} has rules that lead through more than {MAX_PATH} others",
            param=param,
            hint="write rules in place of those that refer to them",
        )
    return "".join([*written, text[copied:]])


def _check_intersections(text: str, number: int, param: str) -> None:
    """Terminals may hold others, so that each operator doubles how many must match at once."""
    if number and num_ways(text) ** 2 ** min(number, 5) > MAX_WAYS:
        raise InvalidRequestError(
            f"{param} has expressions joined by '&' that go on in too many ways together",
            param=param,
            hint="join fewer and simpler ones",
        )


def _json_at(text: str, position: int, param: str) -> tuple[Any, int]:
    """The JSON value that begins after white space at a place, and where it ends."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, position) + 1
        raise InvalidRequestError(
            f"{param} has no valid JSON in line {line}: {error}", param=param
        ) from error
