"""Calls of DeepSeek V3: names and arguments between special tokens."""

from __future__ import annotations

from itertools import count

from twostroke.text.answer_parsing.parts import Content
from twostroke.text.answer_parsing.source import AnswerSource, Reading
from twostroke.tools.base import CallRule, Frame, ToolFamily, ToolSchemas
from twostroke.tools.json_calls import named_call

# These special tokens have a fullwidth bar and a block for each space.
_CALLS_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
_CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
_CALL_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """DeepSeek V3 (a fenced JSON block after the name) and V3.1 (JSON at once)."""
    indices = count()
    if (yield from source.until([_CALLS_BEGIN], Content)) is None:
        return
    while True:
        source.keep_more()
        yield from source.skip_space()
        if (yield from source.next_is(_CALL_BEGIN)) is None:
            break
        yield from source.read(_CALL_BEGIN)
        name, _ = yield from source.text_until(_SEPARATOR)
        yield from source.skip_space()
        if name.strip() == "function" and (yield from source.next_is("{")) is None:
            name, _ = yield from source.text_until("```json")
        yield from named_call(source, next(indices), name)
        yield from source.text_until(_CALL_END)
    yield from source.until([_CALLS_END], Content)
    yield from source.rest(Content)


def _call(call: CallRule) -> str:
    before = f"{_CALL_BEGIN}function{_SEPARATOR}{call.function}\n```json\n"
    return call.between(before, call.json(), f"\n```{_CALL_END}")


DEEPSEEK_V3 = ToolFamily(
    name="deepseek_v3",
    aliases=("deepseek_v31",),
    marks=(_CALLS_BEGIN,),
    special_texts=(_CALLS_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _CALLS_END),
    trigger=_CALLS_BEGIN,
    read=_read_calls,
    call=_call,
    frame=lambda rules: Frame(_CALLS_BEGIN, "\n", _CALLS_END),
)
