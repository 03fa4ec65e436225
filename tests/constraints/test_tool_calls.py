"""What the grammars of tool calls allow, the parsers read, and it fits the tools' schemas."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import jsonschema
import pytest

from tests.constraints import walks
from twostroke.constraints.constraint import Constraint
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.text.answer_parsing.parser import AnswerParser
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content, Reasoning
from twostroke.text.answer_parsing.reasoning import thought_then
from twostroke.tools.registry import FAMILIES as TOOL_FAMILIES
from twostroke.tools.registry import FAMILY_OF_NAME

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Zürich"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "now": NOTHING}
# The one that answers in messages: test_harmony_answers.py.
FAMILIES = sorted(family.name for family in TOOL_FAMILIES if family.messages is None)
TRIGGERED = {family.name for family in TOOL_FAMILIES if family.trigger}


def form(
    family: str,
    *,
    must_call: bool = True,
    max_calls: int | None = None,
    schemas: dict[str, Any] | None = None,
    strict: bool = True,
    thought: Any = "",
) -> StructuredOutputsParams:
    functions = [
        {"name": name, "parameters": schema, "strict": strict, "path": f"tools[{i}]"}
        for i, (name, schema) in enumerate((SCHEMAS if schemas is None else schemas).items())
    ]
    value = {
        "family": family,
        "functions": functions,
        "must_call": must_call,
        "max_calls": max_calls,
    }
    return StructuredOutputsParams(tool_calls=json.dumps(value), thought=thought)


def read(
    family: str, text: str, opened: bool = False, schemas: dict[str, Any] = SCHEMAS
) -> tuple[list[tuple[str, Any]], str, str]:
    """Calls with their arguments, content and thought."""
    reader = FAMILY_OF_NAME[family].reader(schemas)
    parser = AnswerParser(partial(thought_then, then=reader, opened=opened))
    parts = [part for character in text for part in parser.feed(character)] + parser.finish()
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallStarted):
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            calls[part.call] = (calls[part.call][0], calls[part.call][1] + part.text)
    texts = ["".join(p[-1] for p in parts if isinstance(p, kind)) for kind in (Content, Reasoning)]
    return [(name, json.loads(text)) for name, text in calls], texts[0], texts[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_required_call_fits_its_schema(family: str) -> None:
    """Random answers, whatever the model would have preferred."""
    grammar = form(family)
    num_ended = 0
    for seed in range(12):
        text, ended = walks.walk(walks.start(grammar), seed, max_tokens=400)
        num_ended += ended
        if ended:
            calls, content, _ = read(family, text)
            assert calls and not content.strip(), text
            for name, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[name])
    assert num_ended >= 6


@pytest.mark.parametrize("family", FAMILIES)
def test_one_call_where_only_one_is_wanted(family: str) -> None:
    for seed in range(6):
        text, ended = walks.walk(walks.start(form(family, max_calls=1)), seed, max_tokens=400)
        assert not ended or len(read(family, text)[0]) == 1


ANSWERS = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "llama3_json": '{"name": "now", "parameters": {}}',
    "pythonic": "[now()]",
    "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
}


def accepts(constraint: Constraint, text: str) -> bool:
    return walks.accepts(constraint, text)


@pytest.mark.parametrize("family", sorted(ANSWERS))
def test_required_calls_are_what_the_family_writes(family: str) -> None:
    assert accepts(walks.start(form(family)), ANSWERS[family])
    assert not accepts(walks.start(form(family)), "no call")
    assert not accepts(walks.start(form(family)), ANSWERS[family].replace("now", "new"))


@pytest.mark.parametrize("family", sorted(TRIGGERED & ANSWERS.keys()))
def test_a_call_is_constrained_once_the_model_opens_it(family: str) -> None:
    grammar = form(family, must_call=False)
    assert accepts(walks.start(grammar), "no call at all, {}")
    assert accepts(walks.start(grammar), f"I look. {ANSWERS[family]}")
    assert accepts(walks.start(grammar), f"{ANSWERS[family]} and {ANSWERS[family]} done")
    assert not accepts(walks.start(grammar), f"I look. {ANSWERS[family].replace('now', 'new')}")


def test_calls_come_after_the_thought() -> None:
    call = ANSWERS["hermes"]
    for thought, text, right in (
        ("opened", f"Hm, <tool_call>?\n</think>\n\n{call}", True),
        ("opened", call, False),
        ("optional", f"<think>Hm {{</think>{call}", True),
        ("optional", call, True),
        ("optional", f"Hm</think>{call}", False),
    ):
        assert accepts(walks.start(form("hermes", thought=thought)), text) is right, text
        if right:
            assert read("hermes", text, opened=thought == "opened")[0] == [("now", {})]


def test_a_form_comes_after_the_thought() -> None:
    wanted = StructuredOutputsParams(json={"enum": [1]}, thought="opened")
    assert accepts(walks.start(wanted), "I think 2.\n</think>\n\n1")
    assert not accepts(walks.start(wanted), "1")
    for other in (
        StructuredOutputsParams(regex="[0-9]+", thought="optional"),
        StructuredOutputsParams(choice=["1", "2"], thought="optional"),
        StructuredOutputsParams(grammar='start: "1" "0"?', thought="optional"),
    ):
        assert accepts(walks.start(other), "<think>x</think>1")
        assert accepts(walks.start(other), "1")
        assert not accepts(walks.start(other), "<think>x</think>a")


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_enforced(family: str) -> None:
    """Of a strict tool that is an error; of another the arguments are any object."""
    odd = {"f": {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}}
    with pytest.raises(InvalidRequestError, match="'not' is not supported"):
        walks.start(form(family, schemas=odd))
    text, ended = walks.walk(walks.start(form(family, schemas=odd, strict=False)), 1, 600)
    assert not ended or read(family, text, schemas=odd)[0][0][0] == "f"


@pytest.mark.parametrize("family", ["pythonic", "qwen3_coder"])
def test_a_property_that_cannot_be_enforced_keeps_its_type(family: str) -> None:
    """Python's sets become such schemas. Any object in their place would fit none of them."""
    part = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    odd = {"f": {"type": "object", "properties": {"a": part}, "required": ["a"]}}
    text = {
        "pythonic": "[f(a=[1, 2])]",
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n[1, 2]\n</parameter>\n"
        "</function>\n</tool_call>",
    }[family]
    assert accepts(walks.start(form(family, schemas=odd, strict=False)), text)
    assert read(family, text, schemas=odd)[0] == [("f", {"a": [1, 2]})]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "string", "const": "x"},
        {"type": "string", "enum": ["x", ""]},
        {"type": ["string"], "enum": ["x"]},
    ],
)
def test_listed_texts_stand_as_they_are_in_xml(part: dict[str, Any]) -> None:
    """The parser reads texts without quotes, so the grammar must not ask for any."""
    schemas = {"f": {"type": "object", "properties": {"a": part}, "required": ["a"]}}
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    grammar = form("qwen3_coder", schemas=schemas)
    assert accepts(walks.start(grammar), call.format("x"))
    assert read("qwen3_coder", call.format("x"), schemas=schemas)[0] == [("f", {"a": "x"})]
    for other in ('"x"', "y"):
        assert not accepts(walks.start(grammar), call.format(other))


@pytest.mark.parametrize(
    ("family", "schema", "keyword"),
    [
        ("qwen3_coder", {**WEATHER, "minProperties": 1}, "minProperties"),
        ("pythonic", {**WEATHER, "$ref": "#/$defs/a", "$defs": {"a": {}}}, "$ref"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "pattern": "x+"}}}, "pattern"),
        ("qwen3_coder", {"properties": {"a": {"type": "string", "minLength": 3}}}, "minLength"),
    ],
)
def test_what_a_strict_tool_asks_is_kept_or_refused_by_name(
    family: str, schema: dict[str, Any], keyword: str
) -> None:
    with pytest.raises(InvalidRequestError, match=repr(keyword).replace("$", r"\$")):
        walks.start(form(family, schemas={"f": schema}))
    walks.start(form(family, schemas={"f": schema}, strict=False))


def test_a_pattern_holds_where_an_argument_is_json() -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^x+$"}}, "required": ["a"]}
    assert accepts(walks.start(form("pythonic", schemas={"f": schema})), '[f(a="xx")]')
    assert not accepts(walks.start(form("pythonic", schemas={"f": schema})), '[f(a="y")]')
