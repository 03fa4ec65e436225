"""Structural tags as a format of formats: each type allows what it says, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.constraints import walks
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

AGE: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
JSON = {"type": "json_schema", "json_schema": AGE}
TEXT = {"type": "any_text"}
WORD = {"type": "regex", "pattern": "^[a-z/]+$"}
CALL = {"type": "tag", "begin": "<f=age>", "content": JSON, "end": "</f>"}
NOTE = {"begin": "<n>", "content": TEXT, "end": ["</n>", "</note>"]}
AGE_3 = '<f=age>{"age": 3}</f>'


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def of(kind: str, *elements: Any) -> dict[str, Any]:
    return {"type": kind, "elements": list(elements)}


def triggered(*tags: Any, **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f=", "<n"], "tags": list(tags), **options}


def separated(*tags: Any, **options: bool) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": list(tags), "separator": ", ", **options}


FORMATS: list[tuple[Any, list[str], list[str]]] = [
    (const("a b"), ["a b"], ["a", "a bc"]),
    (JSON, ['{"age": 3}'], ["{}", '{"age": "3"}']),
    (WORD, ["ab/c"], ["aB", ""]),
    (TEXT, ["anything {", ""], []),
    (of("sequence", const("x="), JSON, const(";")), ['x={"age": 3};'], ['x={"age": 3}', "x=;"]),
    (of("sequence", const("x"), TEXT), ["x", "x and more"], ["y"]),
    (of("or", const("a"), CALL, WORD), ["a", AGE_3, "bcd"], ["A", AGE_3 + "a"]),
    (CALL, [AGE_3], [AGE_3 + " ", '<f=age>{"age": 3}']),
    ({"type": "tag", **NOTE}, ["<n>a < b</n>", "<n></note>"], ["<n>a", "<n>a</n>b", "a</n>"]),
    (
        triggered(CALL, NOTE),
        ["no tag", f"so {AGE_3} and <n>x</n> end", AGE_3],
        ["so <f=age>{}</f>", "so <f=other>", "<n>x"],
    ),
    (triggered(CALL, at_least_one=True), [AGE_3, f"{AGE_3} x {AGE_3}"], ["x", f"x {AGE_3}"]),
    (triggered(CALL, stop_after_first=True), ["x", f"x {AGE_3}"], [f"{AGE_3} x", AGE_3 * 2]),
    (triggered(CALL, at_least_one=True, stop_after_first=True), [AGE_3], ["x", AGE_3 + "x"]),
    (separated(CALL, NOTE), ["", AGE_3, f"{AGE_3}, <n>x</n>"], [f"{AGE_3},", "x"]),
    (separated(CALL, at_least_one=True), [AGE_3, f"{AGE_3}, {AGE_3}"], [""]),
    (separated(CALL, stop_after_first=True), ["", AGE_3], [f"{AGE_3}, {AGE_3}"]),
]


def form(given: Any) -> StructuredOutputsParams:
    return StructuredOutputsParams(
        structural_tag=json.dumps({"type": "structural_tag", "format": given})
    )


@pytest.mark.parametrize(("given", "right", "wrong"), FORMATS)
def test_each_type(given: Any, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert walks.accepts(walks.start(form(given)), text), text
    for text in wrong:
        assert not walks.accepts(walks.start(form(given)), text), text


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ([], "format"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "format.type"),
        ({"type": "grammar", "grammar": "x"}, "format.type"),
        ({"type": ["x"]}, "format.type"),
        ({"type": "const_string"}, "format.value"),
        ({"type": "const_string", "value": ""}, "format.value"),
        ({"type": "any_text", "excludes": ["x"]}, "format.excludes"),
        (of("sequence", TEXT, const("x")), "format.elements[0]"),
        (of("or"), "format.elements"),
        (of("sequence", triggered(CALL), const("x")), "format.elements[0]"),
        (triggered({**CALL, "begin": "[f]"}), "format.tags[0].begin"),
        (triggered(const("x")), "format.tags[0].type"),
        (triggered(CALL, at_least_one=1), "format.at_least_one"),
        ({"type": "tag", **NOTE, "end": ""}, "format.end"),
        ({**CALL, "content": {**JSON, "json_schema": {"not": {}}}}, "format.content"),
    ],
)
def test_what_is_refused_is_named(given: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        walks.start(form(given))
    assert (caught.value.param or "").startswith(f"structured_outputs.structural_tag.{path}")


def test_hostile_formats_are_refused() -> None:
    deep: Any = const("x")
    for _ in range(40):
        deep = of("sequence", deep)
    for given in (deep, of("or", *[const("x")] * 600)):
        with pytest.raises(InvalidRequestError, match="at most 512 formats"):
            walks.start(form(given))


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", "a[/]b"])
def test_a_slash_of_an_expression_may_be_escaped(pattern: str) -> None:
    form = {"type": "regex", "pattern": pattern}
    constraint = walks.start(StructuredOutputsParams(structural_tag={"format": form}))
    assert walks.accepts(constraint, "a/b")
