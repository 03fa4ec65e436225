"""Every answer that ends by itself fits its schema: walks over what is allowed, and a model."""

from __future__ import annotations

import json
import os
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.constraints import walks
from tests.constraints.schema_cases import CATEGORIES, FORMATS, Schema
from tests.engine.exactness.test_structured_exactness import answers, make_engine
from twostroke.core.errors import InvalidRequestError
from twostroke.core.request import FinishReason
from twostroke.core.sampling_params import SamplingParams
from twostroke.core.structured_outputs import StructuredOutputsParams

NUM_WALKS = 15
# By hand, once: TWOSTROKE_SCHEMA_EXAMPLES=2000 pytest tests/constraints. Last: docs/reference.
NUM_SCHEMAS = int(os.environ.get("TWOSTROKE_SCHEMA_EXAMPLES", "60"))


def check(text: str, schema: Schema) -> None:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind(schema).validate(json.loads(text))


@pytest.mark.parametrize("category", CATEGORIES)
def test_random_answers_fit(category: str) -> None:
    for schema in CATEGORIES[category]:
        num_ended = 0
        for seed in range(NUM_WALKS):
            text, ended = walks.walk(walks.start_json(schema), seed)
            num_ended += ended
            if ended:
                check(text, schema)
        assert num_ended, schema


def test_answers_of_a_model_fit() -> None:
    """Sampled from random weights, all schemas in one batch."""
    engine = make_engine(max_num_seqs=64, max_model_len=128, num_blocks=1200)
    schemas = [schema for category in CATEGORIES.values() for schema in category]
    asked = [
        SamplingParams(
            seed=seed,
            temperature=1.2,
            max_tokens=70,
            structured_outputs=StructuredOutputsParams(json=schema),
        )
        for schema in schemas
        for seed in range(2)
    ]
    collected = answers(engine, *asked)
    num_ended = 0
    for schema, answer in zip([s for s in schemas for _ in range(2)], collected, strict=True):
        assert answer.error is None
        if answer.finish_reason is FinishReason.STOP:
            num_ended += 1
            check(answer.text, schema)
    assert num_ended > len(asked) / 4


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "3.5", "03"]),
        ({"enum": ["a", 1]}, ['"a"', "1"], ["a", '"b"', "2"]),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-02-30"', '"24-1-1"']),
        ({"type": "array", "items": {"type": "null"}}, ["[]", "[null, null]"], ["[1]", "[null,]"]),
    ],
)
def test_what_fits_can_be_written_and_nothing_else(
    schema: Schema, fitting: list[str], others: list[str]
) -> None:
    for text in fitting:
        assert walks.accepts(walks.start_json(schema), text), text
    for text in others:
        assert not walks.accepts(walks.start_json(schema), text), text


def test_white_space_has_a_bound() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for text in ("[1,2]", "[1, 2]", "[\n    1,\n    2\n]"):
        assert walks.accepts(walks.start_json(schema), text), text
    for text in ("[  1]", "[\n\n1]", "[" + "\n" + " " * 99 + "1]", "[\t1]"):
        assert not walks.accepts(walks.start_json(schema), text), text
    assert walks.accepts(walks.start_json(schema, whitespace_pattern=r"\t{1,3}"), "[\t\t1]")
    compact = {"disable_any_whitespace": True}
    assert walks.accepts(walks.start_json(schema, **compact), "[1, 2]")
    assert not walks.accepts(walks.start_json(schema, **compact), "[1,2]")


def test_objects_can_be_closed_from_outside() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    assert walks.accepts(walks.start_json(schema), '{"b": 1}')
    constraint = walks.start_json(schema, disable_additional_properties=True)
    assert not walks.accepts(constraint, '{"b": 1}')


# ---- schemas that nobody wrote -----------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "key", "é"])
VALUES = st.sampled_from([None, True, 0, 1, -2, 1.5, "", "a", "x y", [1], {"a": None}])
COUNTS = st.integers(0, 4)
KEYWORDS = {
    "type": st.sampled_from(
        [*(["null", "boolean", "integer", "number", "string", "array", "object"])]
    ),
    "enum": st.lists(VALUES, min_size=1, max_size=4),
    "const": VALUES,
    "minimum": st.integers(-9, 9),
    "maximum": st.integers(-9, 9) | st.floats(-9, 9, allow_nan=False),
    "exclusiveMaximum": st.integers(-9, 9),
    "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 7]),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "pattern": st.sampled_from(["^a", "b$", "^[a-c]{2}$", "x|y", "(", "a.c", r"\d"]),
    "format": st.sampled_from([*FORMATS, "zip"]),
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "required": st.lists(NAMES, max_size=2, unique=True),
    "minProperties": COUNTS,
    "maxProperties": COUNTS,
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/nothing"]),
    "title": st.text(max_size=3),
    "not": st.just({}),
    "uniqueItems": st.booleans(),
}


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, max_size=3)
    keywords = {
        **KEYWORDS,
        "properties": named,
        "additionalProperties": inner,
        "items": inner,
        "prefixItems": listed,
        "anyOf": listed,
        "oneOf": listed,
        "allOf": listed,
        "$defs": named,
    }
    return _some_of(keywords)


@st.composite
def _some_of(draw: st.DrawFn, keywords: dict[str, st.SearchStrategy[Any]]) -> Schema:
    # Names first: a schema of all keywords at once can hardly be satisfied.
    names = draw(st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True))
    return {name: draw(keywords[name]) for name in names}


SCHEMAS = st.recursive(_some_of(KEYWORDS) | st.booleans(), _compound, max_leaves=6)


@settings(max_examples=NUM_SCHEMAS, deadline=5_000, suppress_health_check=[HealthCheck.too_slow])
@given(schema=SCHEMAS.filter(lambda schema: isinstance(schema, dict)), seed=st.integers(0, 99))
def test_any_schema_is_refused_by_name_or_enforced(schema: Schema, seed: int) -> None:
    """No crash, no hang; and what ends by itself fits."""
    try:
        constraint = walks.start_json(schema)
    except InvalidRequestError as error:
        assert error.param == "structured_outputs.json" and error.message
        return
    text, ended = walks.walk(constraint, seed, max_tokens=80)
    if ended:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
