"""Expressions that must all match one text stay within what the library can pair in a step."""

from __future__ import annotations

from itertools import combinations, islice
from typing import Any

import pytest

from tests.constraints import walks
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

# Each goes on in several ways: with 14 of them the library took minutes and gigabytes.
HARD = [{"pattern": f"(a|b)*a.{{{place}}}b"} for place in range(10, 24)]
CLASSES = ["".join(letters) for size in range(1, 7) for letters in combinations("bcdefghijk", size)]
ALTERNATIVES = "|".join(f"[a{letters}]x{letters}.*" for letters in islice(CLASSES, 500))
AT_ONE_PLACE = {
    "allOf": {"type": "string", "allOf": HARD},
    "a chain of references": {
        "$defs": {
            f"d{place}": {**each, "$ref": f"#/$defs/d{place + 1}"} if place < 13 else each
            for place, each in enumerate(HARD)
        },
        "$ref": "#/$defs/d0",
    },
    "a property": {"allOf": [{"type": "object", "properties": {"a": each}} for each in HARD]},
    "a property and others": {
        "allOf": [
            {"type": "object", "properties": {"a": HARD[0]}},
            *({"type": "object", "additionalProperties": each} for each in HARD[1:]),
        ]
    },
    "items": {"allOf": [{"type": "array", "items": each} for each in HARD]},
    "options": {
        "type": "string",
        "allOf": [{"anyOf": [each, {"enum": ["b"]}]} for each in HARD],
    },
    "many options": {
        "type": "string",
        "allOf": [{"anyOf": [each, *({"minLength": n} for n in range(300))]} for each in HARD],
    },
    "two that are wide": {
        "type": "string",
        "allOf": [{"pattern": f"^({ALTERNATIVES})$"}, {"pattern": f"^({ALTERNATIVES})b$"}],
    },
    "names": {
        "type": "object",
        "patternProperties": {f"^({ALTERNATIVES})$": {}, f"^({ALTERNATIVES})b$": {}},
    },
}


@pytest.mark.parametrize("name", AT_ONE_PLACE)
def test_too_many_at_one_place_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="too many ways"):
        walks.start_json(AT_ONE_PLACE[name])


@pytest.mark.parametrize("join", [" & ", " & C & "])
def test_too_many_in_a_grammar_are_refused(join: str) -> None:
    expressions = join.join(f"/(a|b)*a.{{{place}}}b.*/" for place in range(10, 24))
    with pytest.raises(InvalidRequestError, match="'&'"):
        walks.start(StructuredOutputsParams(grammar=f"start: A\nA: {expressions}\nC: /c/"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{n}": each for n, each in enumerate(HARD)}},
        {
            "allOf": [
                {"type": "object", "properties": {f"p{n}": each}} for n, each in enumerate(HARD)
            ]
        },
        {"anyOf": [{"type": "object", "properties": {"a": each}} for each in HARD]},
        {"type": "string", "format": "email", "pattern": "^[a-z.]+@[a-z]+$", "maxLength": 200},
    ],
)
def test_as_many_at_different_places_are_taken(schema: dict[str, Any]) -> None:
    walks.start_json(schema).allowed()


def test_one_intersection_in_a_grammar_is_taken() -> None:
    grammar = "start: A\nA: /[a-z]{3,9}/ & /.*e.*/"
    assert walks.accepts(walks.start(StructuredOutputsParams(grammar=grammar)), "hello")
