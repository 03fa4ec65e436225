"""Structural tags: text is free, and what a trigger opens has its form until its end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.constraints import walks
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
NAME = {"type": "object", "properties": {"name": {"enum": ["x"]}}, "required": ["name"]}
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=age>", "schema": AGE, "end": "</f>"},
        {"begin": "<f=name>", "schema": NAME, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def accepts(text: str, tag: Any = TAG) -> bool:
    form = StructuredOutputsParams(structural_tag=tag)
    return walks.accepts(walks.start(form), text)


def test_text_without_a_trigger_is_free() -> None:
    assert accepts('{ "not": json <f and so on')


def test_parts_have_the_form_of_their_beginning() -> None:
    assert accepts('first <f=age>{"age": 3}</f> then <f=name>{"name": "x"}</f> end')
    assert not accepts('<f=age>{"age": "x"}</f>')
    assert not accepts('<f=other>{"age": 3}</f>')
    assert not accepts('<f=age>{"age": 3}')
    assert not accepts('<f=age>{"age":\n\n\n3}</f>'), "white space is bounded there, too"


def test_a_trigger_that_is_a_special_token() -> None:
    tag = {
        "structures": [{"begin": "<|start|>", "schema": AGE, "end": "."}],
        "triggers": ["<|start|>"],
    }
    assert accepts('see <|start|>{"age": 3}.', tag)
    assert not accepts("see <|start|>3.", tag)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"triggers": []}, "triggers must be a list"),
        ({"triggers": ["<g"]}, "structures[0] must have a 'begin' that starts with"),
        ({"structures": []}, "structures must be a list"),
        ({"structures": [{"begin": "<f="}]}, "must be an object with 'begin', 'schema' and 'end'"),
        ({"format": {}}, "does not go with format"),
        ({"other": 1}, "other is not supported"),
        (
            {"structures": [{"begin": "<f=", "schema": {"not": {}}, "end": ""}]},
            "the keyword 'not' is not supported, at #/not",
        ),
    ],
)
def test_malformed_tags_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        accepts("", {**TAG, **change})
    assert words in caught.value.message
