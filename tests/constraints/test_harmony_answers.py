"""Answers in the harmony format, over a tokenizer with its special tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from tests.constraints import walks
from tests.constraints.test_tool_calls import SCHEMAS, form, read
from tests.text.tiny_tokenizers import byte_level, id_of
from twostroke.constraints.compiler import GrammarCompiler
from twostroke.constraints.constraint import Constraint
from twostroke.core.structured_outputs import StructuredOutputsParams
from twostroke.text.tokenizer import Tokenizer

TOKENS = ["<|channel|>", "<|message|>", "<|constrain|>", "<|return|>", "<|call|>"]
THOUGHT = "<|channel|>analysis<|message|>Hm {.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
FINAL = "<|channel|>final<|message|>"
GPU = {"type": "object", "properties": {"name": {"enum": ["A", "H"]}}, "required": ["name"]}


@cache
def compiler() -> GrammarCompiler:
    backend = byte_level()
    backend.add_special_tokens(TOKENS)
    return GrammarCompiler(Tokenizer(backend))


def start(wanted: StructuredOutputsParams) -> Constraint:
    backend = compiler()._tokenizer.backend
    ends = [id_of(backend, "<|return|>"), id_of(backend, "<|call|>")]
    return compiler().compile(wanted).start(ends, backend.get_vocab_size())


def accepts(wanted: StructuredOutputsParams, text: str, end: str = "<|return|>") -> bool:
    constraint = start(wanted)
    for token in compiler()._tokenizer.encode(text + end, add_special_tokens=False):
        if token not in walks.token_ids(constraint.allowed()):
            return False
        constraint.advance([token])
    return True


def test_required_calls() -> None:
    """With thoughts before them, and the recipient in the channel or in the role."""
    wanted = form("openai")
    assert accepts(wanted, CALL, "<|call|>")
    assert accepts(wanted, THOUGHT + THOUGHT + CALL, "<|call|>")
    by_role = " to=functions.now<|channel|>commentary json<|message|>{}"
    assert accepts(wanted, by_role, "<|call|>")
    assert read("openai", by_role)[0] == [("now", {})]
    assert read("openai", THOUGHT + CALL) == ([("now", {})], "", "Hm {.")
    for text in (FINAL + "no call", "no call", CALL.replace("now", "new"), CALL + " {}"):
        assert not accepts(wanted, text), text


def test_calls_or_text() -> None:
    wanted = form("openai", must_call=False)
    for text in (FINAL + "It is {now}.", THOUGHT + FINAL + "It is.", CALL, THOUGHT + CALL):
        assert accepts(wanted, text), text
    weather = CALL.replace("now", "get_weather")
    assert not accepts(wanted, weather)
    arguments = {"city": "Bern", "unit": "C"}
    right = weather.replace("{}", json.dumps(arguments))
    assert accepts(wanted, right)
    assert read("openai", right)[0] == [("get_weather", arguments)]
    jsonschema.validate(arguments, SCHEMAS["get_weather"])


@pytest.mark.parametrize("thought", ["", THOUGHT])
def test_forms_stand_in_the_last_message(thought: str) -> None:
    wanted = StructuredOutputsParams(json=GPU, thought="channels")
    assert accepts(wanted, thought + FINAL + '{"name": "H"}')
    for text in ('{"name": "H"}', FINAL + '{"name": "B"}', FINAL + "I think", CALL):
        assert not accepts(wanted, thought + text), text


def test_calls_or_a_form() -> None:
    value: dict[str, Any] = json.loads(form("openai", must_call=False).tool_calls or "")
    wanted = StructuredOutputsParams(tool_calls=json.dumps(value | {"answer": {"json": GPU}}))
    for text in (THOUGHT + CALL, CALL, FINAL + '{"name": "H"}', THOUGHT + FINAL + '{"name": "A"}'):
        assert accepts(wanted, text), text
    for text in (FINAL + "It is.", FINAL + '{"name": "B"}', CALL.replace("now", "new")):
        assert not accepts(wanted, text), text
