"""Calls of Mistral: a list of JSON objects, or names and arguments, after ``[TOOL_CALLS]``."""

from __future__ import annotations

import json
from itertools import count

from twostroke.text.answer_parsing.parts import Content
from twostroke.text.answer_parsing.source import AnswerSource, Reading
from twostroke.tools.base import CallRule, Frame, ToolFamily, ToolSchemas
from twostroke.tools.json_calls import call_object, named_call
from twostroke.tools.rules import Rules


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """``[TOOL_CALLS]`` and a list of objects, or ``[TOOL_CALLS]name[ARGS]{...}`` for each call."""
    indices = count()
    while (yield from source.until(["[TOOL_CALLS]"], Content)) is not None:
        yield from source.skip_space()
        if (yield from source.next_is("[")):
            yield from _object_list(source, indices)
        elif (yield from source.next_is("{")):
            yield from call_object(source, next(indices))
        else:
            name, marker = yield from source.text_until("[ARGS]", "[CALL_ID]", "{")
            if marker == "[CALL_ID]":
                yield from source.text_until("[ARGS]")
            if marker == "{":
                source.back(1)
            yield from named_call(source, next(indices), name)


def _object_list(source: AnswerSource, indices: count[int]) -> Reading[None]:
    yield from source.read("[")
    yield from source.skip_space()
    while (yield from source.next_is("]")) is None:
        source.keep_more()
        yield from call_object(source, next(indices))
        yield from source.skip_space()
        if (yield from source.next_is(",")):
            yield from source.read(",")
            yield from source.skip_space()
    yield from source.read("]")


def _call(call: CallRule) -> str:
    if _writes_names(call.rules):
        return call.between(f"[TOOL_CALLS]{call.function}[ARGS]", call.json(), "")
    before = f'{{"name": {json.dumps(call.function)}, "arguments": '
    return call.between(before, call.json(), "}")


def _frame(rules: Rules) -> Frame:
    return Frame() if _writes_names(rules) else Frame("[TOOL_CALLS] [", ", ", "]")


def _writes_names(rules: Rules) -> bool:
    """Whether the tokenizer is one of the newer models, which write no list."""
    return rules.is_special("[ARGS]")


MISTRAL = ToolFamily(
    name="mistral",
    marks=("[TOOL_CALLS]",),
    special_texts=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    trigger="[TOOL_CALLS]",
    read=_read_calls,
    call=_call,
    frame=_frame,
)
