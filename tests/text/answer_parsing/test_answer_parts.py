"""The one stream of answer parts: plain text without a parser, calls beyond the limit left out."""

from __future__ import annotations

from twostroke.text.answer_parsing.answer_parts import AnswerParts
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.tools.registry import FAMILY_OF_NAME

CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def test_without_a_form_all_text_is_content() -> None:
    parts = AnswerParts(None)
    assert parts.add("<tool_call>", ended=False) == [Content("<tool_call>")]
    assert parts.add("", ended=True) == []
    assert not parts.parses and not parts.has_calls


def test_calls_beyond_the_limit_are_left_out_and_the_end_gives_what_was_held_back() -> None:
    parts = AnswerParts(FAMILY_OF_NAME["hermes"].reader({"f": {}}), max_calls=1)
    first = parts.add(CALL + CALL + "<tool", ended=False)
    assert {part.call for part in first if isinstance(part, CallStarted | CallArguments)} == {0}
    assert parts.add("", ended=True) == [Content("<tool")]
    assert parts.has_calls
