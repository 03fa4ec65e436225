"""Calls of Hermes and Qwen: JSON objects in tags."""

from __future__ import annotations

import json
from itertools import count

from twostroke.text.answer_parsing.parts import Content
from twostroke.text.answer_parsing.source import AnswerSource, Reading
from twostroke.tools.base import CallRule, Frame, ToolFamily, ToolSchemas
from twostroke.tools.json_calls import call_object


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` within content."""
    indices = count()
    while (yield from source.until(["<tool_call>"], Content)) is not None:
        yield from call_object(source, next(indices))
        yield from source.skip_space()
        if (yield from source.next_is("</tool_call>")):
            yield from source.read("</tool_call>")


def _call(call: CallRule) -> str:
    before = f'<tool_call>\n{{"name": {json.dumps(call.function)}, "arguments": '
    return call.between(before, call.json(), "}\n</tool_call>")


HERMES = ToolFamily(
    name="hermes",
    aliases=("granite4",),
    marks=("<tool_call>",),
    special_texts=("<tool_call>", "</tool_call>"),
    trigger="<tool_call>",
    read=_read_calls,
    call=_call,
    frame=lambda rules: Frame(separator="\n"),
)
