"""Schemas of tools hold calls to the properties that they list, wherever that leaves an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.constraints import walks
from tests.constraints.test_tool_calls import FAMILIES, form, read
from twostroke.core.structured_outputs import StructuredOutputsParams

CITY: dict[str, Any] = {"city": {"enum": ["Ulm", "Bern"]}}
LISTED: dict[str, Any] = {"type": "object", "properties": CITY, "required": ["city"]}
BASE: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}}
MORE: dict[str, Any] = {"type": "object", "properties": {"b": {"const": 2}}}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"$ref": "#/$defs/Place"}, "notes": {"type": "object"}},
    "$defs": {"Place": LISTED},
}


def allows(schema: dict[str, Any], arguments: Any, closing: str = "listed") -> bool:
    """Whether a call of a tool that is not strict may have these arguments."""
    wanted = form("hermes", schemas={"f": schema}, strict=False)
    value = json.loads(wanted.tool_calls or "") | {"closing": closing}
    call = f'<tool_call>\n{{"name": "f", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    return walks.accepts(walks.start(StructuredOutputsParams(tool_calls=json.dumps(value))), call)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_have_the_keys_of_their_schema(family: str) -> None:
    """Random calls, which wrote keys of their own where the schema did not forbid them."""
    schemas = {"f": LISTED}
    wanted = form(family, schemas=schemas, strict=False, max_calls=1)
    num_ended = 0
    for seed in range(14):
        text, ended = walks.walk(walks.start(wanted), seed, max_tokens=200)
        num_ended += ended
        for _, arguments in read(family, text, schemas=schemas)[0] if ended else ():
            assert arguments.keys() == {"city"}
    assert num_ended >= 7


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (LISTED, {"city": "Ulm", "x": 1}),
        ({"type": "object", "properties": {}}, {"x": 1}),
        (NESTED, {"place": {"city": "Ulm", "x": 1}}),
        ({"anyOf": [BASE, MORE]}, {"a": 1, "x": 1}),
        ({"allOf": [{"$ref": "#/$defs/B"}], "$defs": {"B": BASE}}, {"x": 1}),
    ],
)
def test_what_no_schema_lists_is_not_written(schema: dict[str, Any], arguments: Any) -> None:
    assert not allows(schema, arguments)
    assert allows(schema, arguments, "none")


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"type": "object"}, {"x": 1}),
        (NESTED, {"place": {"city": "Ulm"}, "notes": {"x": 1}}),
        ({**LISTED, "additionalProperties": True}, {"city": "Ulm", "x": 1}),
        ({"allOf": [BASE, MORE]}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/B"}, MORE], "$defs": {"B": BASE}}, {"a": 1, "b": 2}),
        ({**BASE, "anyOf": [MORE, {"type": "object"}]}, {"a": 1, "b": 2}),
        ({**BASE, "$ref": "#/$defs/B", "$defs": {"B": MORE}}, {"a": 1, "b": 2}),
        ({**BASE, "required": ["x"]}, {"a": 1, "x": 1}),
        # What cannot be enforced is any object, as before.
        ({"type": "object", "properties": {"a": {"not": {}}}}, {"x": 1}),
    ],
)
def test_free_and_extended_objects_stay_open(schema: dict[str, Any], arguments: Any) -> None:
    """Closing each part of a schema that is put together would leave nothing to write."""
    assert allows(schema, arguments)


def test_the_switch_for_answers_closes_all() -> None:
    assert not allows({"type": "object"}, {"x": 1}, "all")
    wanted = StructuredOutputsParams(json=LISTED)
    assert walks.accepts(walks.start(wanted), '{"city": "Ulm", "x": 1}')
