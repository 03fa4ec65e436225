"""What a schema asks and nothing enforces is refused by name and place, never left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.constraints import walks
from twostroke.constraints.schemas.json_schema import rewrite_schema
from twostroke.core.errors import InvalidRequestError

INTEGER = {"type": "integer"}


def refusal(schema: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        walks.start_json(schema)
    assert caught.value.param == "structured_outputs.json"
    return caught.value.message


@pytest.mark.parametrize(
    "keyword",
    [
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "propertyNames",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$recursiveRef",
        "minLenght",
        "divisibleBy",
    ],
)
def test_keywords_that_are_not_enforced(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a": {"items": {keyword: {}}}}}
    message = refusal(schema)
    assert message == (
        f"the keyword {keyword!r} is not supported, at #/properties/a/items/{keyword}"
    )


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strnig"}, "'type' must be one of null"),
        ({"type": "string", "format": "zip"}, "the format 'zip' is not supported"),
        ({"format": "zip"}, "the format 'zip' is not supported"),
        ({"minLength": -1}, "'minLength' must be a whole number"),
        ({"minLength": True}, "'minLength' must be a whole number"),
        ({"multipleOf": -1}, "'multipleOf' must be a number above 0"),
        ({"minimum": "3"}, "'minimum' must be a number"),
        ({"enum": []}, "'enum' must be a list"),
        ({"anyOf": []}, "'anyOf' must be a list of schemas"),
        ({"properties": {"a": 3}}, "'properties' must be an object of schemas"),
        ({"required": "a"}, "'required' must be a list"),
        ({"$ref": "#/$defs/a"}, "'$ref' '#/$defs/a' leads to nothing"),
        ({"$ref": "http://example.com/a.json"}, "leads to nothing in the schema"),
        ({"$ref": "#"}, "no answer can satisfy it"),
        ({"allOf": [{"$ref": "#"}]}, "no answer can satisfy it"),
        ({"minimum": 5, "maximum": 2, "type": "integer"}, "minimum (5) is greater than"),
        ({"minProperties": 2}, "'minProperties' above 1"),
        ({"oneOf": [INTEGER, {"type": "number"}]}, "options 0 and 1 may both fit one, at #/oneOf"),
        ({"oneOf": [{"$ref": "#/$defs/a"}, INTEGER], "$defs": {"a": INTEGER}}, "options 0 and 1"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"enum": [2**60]}, "'enum' holds 1152921504606846976"),
        ({"properties": {"a": {"$id": "x"}}}, "the keyword '$id' is not supported"),
    ],
)
def test_values_that_make_no_sense_or_cannot_be_enforced(schema: Any, words: str) -> None:
    assert words in refusal(schema)


def test_what_stands_in_unused_definitions_is_not_asked_for() -> None:
    walks.start_json({"$defs": {"unused": {"not": {}}}, "type": "integer"})
    used = {"$defs": {"used": {"not": {}}}, "$ref": "#/$defs/used"}
    assert refusal(used) == "the keyword 'not' is not supported, at #/$defs/used/not"


def test_descriptions_bound_nothing() -> None:
    described = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "http://example.com/a",
        "title": "x",
        "description": "x",
        "default": {"not": 1},
        "examples": [1],
        "deprecated": True,
        "x-anything": {"not": {}},
        "type": "integer",
    }
    walks.start_json(described)


def test_a_schema_cannot_switch_the_library() -> None:
    """Its own options lie in this key: one of them makes it leave out what it does not know."""
    assert "'not'" in refusal({"x-guidance": {"lenient": True}, "not": {}})
    lax = {"x-guidance": {"whitespace_pattern": "z"}, "type": "array", "items": INTEGER}
    assert not walks.accepts(walks.start_json(lax), "[z1]")


def test_sizes_have_bounds() -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"properties": {"a": deep}}
    assert "nested more than" in refusal(deep)
    assert "nested more than" in refusal(json.dumps(deep))
    assert "too large" in refusal({"enum": ["x" * 600_000]})
    assert "characters" in refusal('{"enum": ["' + "x" * 600_000 + '"]}')
    assert "too large" in refusal({"enum": list(range(60_000))})
    options = [{"const": number} for number in range(300)]
    assert "more than 256 options" in refusal({"oneOf": options})


def test_comparisons_of_options_have_a_bound() -> None:
    """Each level multiplies them by the properties: these would be a billion."""
    names = [f"p{number}" for number in range(20)]
    node = {
        "type": "object",
        "required": names,
        "properties": {name: {"$ref": "#/$defs/a"} for name in names},
    }
    options = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
    assert "takes too long" in refusal({"$defs": {"a": node, "b": dict(node)}, "oneOf": options})


def test_listed_values_that_are_compared_have_a_bound() -> None:
    options = [{"enum": list(range(start, start + 9_000))} for start in (0, 10_000)]
    assert "takes too long" in refusal({"oneOf": options})


def test_a_target_is_rewritten_once_however_it_is_spelled() -> None:
    """Each letter of a pointer may be escaped, so a target has thousands of spellings."""
    spellings = ["#/$defs/ab", "#/$defs/%61b", "#/$defs/a%62", "#/%24defs/ab"]
    schema = {
        "$defs": {"ab": {"type": "integer"}},
        "properties": {f"p{i}": {"$ref": spelled} for i, spelled in enumerate(spellings)},
    }
    rewritten = rewrite_schema(schema, "schema")
    assert rewritten["$defs"] == {"0": {"type": "integer"}}
    assert all(part == {"$ref": "#/$defs/0"} for part in rewritten["properties"].values())
