"""Answers that may call, be free text, or have a form: which are allowed, and how they are read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.constraints import walks
from tests.constraints.test_tool_calls import ANSWERS, FAMILIES, SCHEMAS, accepts, form, read
from twostroke.core.structured_outputs import StructuredOutputsParams

# Families whose calls open with nothing of their own: text that cannot be a call, and a call.
WITHOUT_TRIGGER = {
    "llama3_json": ("It is {now}.", ANSWERS["llama3_json"]),
    "pythonic": ("It is [now].", ANSWERS["pythonic"]),
}


@pytest.mark.parametrize("family", sorted(WITHOUT_TRIGGER))
def test_strict_calls_of_families_without_a_trigger(family: str) -> None:
    """An answer that begins as a call does is one, by its schema; any other is free."""
    text, call = WITHOUT_TRIGGER[family]
    grammar = form(family, must_call=False)
    assert accepts(walks.start(grammar), text)
    assert accepts(walks.start(grammar), call)
    assert not accepts(walks.start(grammar), call.replace("now", "new"))
    assert read(family, text)[0] == [] and read(family, call)[0] == [("now", {})]
    for seed in range(12):
        walked, ended = walks.walk(walks.start(grammar), seed, max_tokens=100)
        for name, arguments in read(family, walked)[0] if ended else ():
            jsonschema.validate(arguments, SCHEMAS[name])


@pytest.mark.parametrize(
    ("family", "marker"), [("llama3_json", "<|python_tag|>"), ("pythonic", "<|python_start|>")]
)
def test_a_marker_that_opens_calls_does_not_free_them(family: str, marker: str) -> None:
    grammar = form(family, must_call=False)
    assert accepts(walks.start(grammar), marker + ANSWERS[family])
    assert not accepts(walks.start(grammar), marker + ANSWERS[family].replace("now", "new"))


GPU = {
    "type": "object",
    "properties": {"name": {"enum": ["A", "H"]}, "gigabytes": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
TREE = {
    "type": "object",
    "properties": {"below": {"type": "array", "items": {"$ref": "#"}}},
    "required": ["below"],
    "additionalProperties": False,
}


def calls_or(family: str, answer: dict[str, Any], **options: Any) -> StructuredOutputsParams:
    value = json.loads(form(family, must_call=False, **options).tool_calls or "")
    thought = options.get("thought", "")
    return StructuredOutputsParams(
        tool_calls=json.dumps(value | {"answer": answer}), thought=thought
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_is_calls_or_has_the_form(family: str) -> None:
    wanted = calls_or(family, {"json": GPU})
    assert accepts(walks.start(wanted), '{"name": "H", "gigabytes": 80}')
    assert not accepts(walks.start(wanted), '{"name": "B"}')
    assert not accepts(walks.start(wanted), "I look.")
    if call := ANSWERS.get(family):
        assert accepts(walks.start(wanted), call)
        assert not accepts(walks.start(wanted), call.replace("now", "new"))
    kinds = set()
    for seed in range(16):
        text, ended = walks.walk(walks.start(wanted), seed, max_tokens=300)
        if ended:
            calls, content, _ = read(family, text)
            kinds.add(bool(calls))
            for name, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[name])
            if not calls:
                jsonschema.validate(json.loads(content), GPU)
    assert kinds


@pytest.mark.parametrize("answer", [{"choice": ["1", "2"]}, {"grammar": 'start: "1" | "2"'}])
def test_calls_or_a_form_that_is_no_json(answer: dict[str, Any]) -> None:
    wanted = calls_or("hermes", answer, thought="optional")
    assert accepts(walks.start(wanted), "<think>?</think>1")
    assert accepts(walks.start(wanted), "<think>?</think>" + ANSWERS["hermes"])
    assert not accepts(walks.start(wanted), "3")


def test_a_call_as_an_object_keeps_its_references() -> None:
    """Arguments whose schema refers to itself are no longer the root of what they stand in."""
    wanted = calls_or("llama3_json", {"json": GPU}, schemas={"plant": TREE})
    right = '{"name": "plant", "parameters": {"below": [{"below": []}]}}'
    assert accepts(walks.start(wanted), right)
    assert not accepts(walks.start(wanted), right.replace("[{", '[{"name": "plant", '))
