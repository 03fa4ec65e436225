"""Grammars in Lark's notation: their schemas are held to what schemas are, and all else stays."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.constraints import walks
from tests.constraints.hostile_forms import UNENDED
from twostroke.constraints import lark_rules
from twostroke.constraints.lark_rules import checked_grammar
from twostroke.core.errors import InvalidRequestError
from twostroke.core.structured_outputs import StructuredOutputsParams

# Everything that looks like something else: names, schemas and ends within texts and expressions.
UNCHANGED = r"""
%llguidance { "x": 1 }
%ignore /[ \t]/
start: a | "%json {" b // a: %json [
!a[capture, max_tokens=10]: "say \"(((\" twice" (b | /[(\/"]+/) <[3]>
?b.2: "x".."z" ~ 2..3
   | NUMBER{1,2}  # b: c
NUMBER: /%json \{/
"""


def checked(grammar: str) -> str:
    def inline(schema: Any, path: str) -> str:
        return json.dumps({"seen": schema, "at": path})

    return checked_grammar(grammar, "grammar", inline)


def test_what_holds_no_schema_stays_as_it_is() -> None:
    assert checked(UNCHANGED) == UNCHANGED


def test_schemas_are_written_anew_where_they_stand() -> None:
    grammar = 'start: "<" body ">"\nbody: %json {"a": "}\\""} | %json\n  {"b": []}\nother: "c"\n'
    schemas: list[Any] = [{"a": '}"'}, {"b": []}]
    first, second = (json.dumps({"seen": schema, "at": "grammar.body"}) for schema in schemas)
    assert checked(grammar) == (
        f'start: "<" body ">"\nbody: %json {first} | %json {second}\nother: "c"\n'
    )


def test_a_schema_in_a_grammar_is_enforced_or_refused_like_any_other() -> None:
    def start(schema: str) -> None:
        walks.start(StructuredOutputsParams(grammar=f'start: "<" %json {schema} ">"'))

    start('{"type": "integer"}')
    with pytest.raises(InvalidRequestError, match=r"'uniqueItems' is not supported, at #/uniq"):
        start('{"type": "array", "uniqueItems": true}')
    with pytest.raises(InvalidRequestError, match="no valid JSON in line 1"):
        start('{"type": ')


@pytest.mark.parametrize(
    "grammar",
    [
        "start: a\na: b\nb: c\nc: d\nd: e\ne: f\n",
        "start: A\nA: B\nB: C\nC: D\nD: E\nE: F\n",
        'start: (((((("a"))))))',
        "".join(f"{one}: /\n/ {two} /\n/\n" for one, two in zip(["start", *"abcde"], "abcdef")),
        "start: a\na: (b | (c))\nb: ((c))\nc: start\n",
    ],
)
def test_rules_that_lead_too_far_are_refused(grammar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(grammar) == grammar
    monkeypatch.setattr(lark_rules, "MAX_PATH", 5)
    with pytest.raises(InvalidRequestError, match="lead through more than 5 others") as caught:
        checked(grammar)
    assert caught.value.param == "grammar"


@pytest.mark.parametrize("name", UNENDED)
def test_every_character_is_read_once(name: str) -> None:
    """A search holds up all other threads, for as long as it takes."""
    began = time.thread_time()
    assert checked(UNENDED[name]) == UNENDED[name]
    assert time.thread_time() - began < 1
    with pytest.raises(InvalidRequestError, match="lexer error"):
        walks.start(StructuredOutputsParams(grammar=UNENDED[name]))
