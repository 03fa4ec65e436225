"""Tool calls that a model writes as JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek V3."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from itertools import count

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import (
    AnswerSource,
    MalformedCallError,
    Reading,
    strict_json,
)

NAME_FIELD = "name"
ARGUMENT_FIELDS = ("arguments", "parameters")
# DeepSeek's special tokens have a fullwidth bar and a block for each space.
DEEPSEEK_CALLS_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
DEEPSEEK_CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
DEEPSEEK_CALL_BEGIN = "<\uff5ctool\u2581call\u2581begin\uff5c>"
DEEPSEEK_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"


def hermes_calls(source: AnswerSource) -> Reading[None]:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` within content."""
    indices = count()
    while (yield from source.until(["<tool_call>"], Content)) is not None:
        yield from call_object(source, next(indices))
        yield from source.skip_space()
        if (yield from source.next_is("</tool_call>")):
            yield from source.read("</tool_call>")


def llama_json_calls(source: AnswerSource, names: Collection[str]) -> Reading[None]:
    """The whole answer is ``{"name": ..., "parameters": {...}}``, several with ``;`` between them.

    ``<|python_tag|>`` may stand before it. Without any mark, an object that names none of the tools
    is content.

    Args:
        names: Of the tools.
    """
    marked = False
    yield from source.skip_space()
    if (yield from source.next_is("<|python_tag|>")):
        yield from source.read("<|python_tag|>")
        yield from source.skip_space()
        marked = True
    if (yield from source.next_is("{")) is None:
        marked = (yield from source.until(["<|python_tag|>"], Content)) is not None
    indices = count()
    while not (yield from source.at_end()):
        source.keep()
        yield from call_object(source, next(indices), None if marked else names)
        yield from source.skip_space()
        if (yield from source.next_is(";")):
            yield from source.read(";")
            yield from source.skip_space()


def mistral_calls(source: AnswerSource) -> Reading[None]:
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
            yield from _named_call(source, next(indices), name)


def deepseek_calls(source: AnswerSource) -> Reading[None]:
    """DeepSeek V3 (a fenced JSON block behind the name) and V3.1 (JSON at once)."""
    indices = count()
    if (yield from source.until([DEEPSEEK_CALLS_BEGIN], Content)) is None:
        return
    while True:
        source.keep_more()
        yield from source.skip_space()
        if (yield from source.next_is(DEEPSEEK_CALL_BEGIN)) is None:
            break
        yield from source.read(DEEPSEEK_CALL_BEGIN)
        name, _ = yield from source.text_until(DEEPSEEK_SEPARATOR)
        yield from source.skip_space()
        if name.strip() == "function" and (yield from source.next_is("{")) is None:
            name, _ = yield from source.text_until("```json")
        yield from _named_call(source, next(indices), name)
        yield from source.text_until(DEEPSEEK_CALL_END)
    yield from source.until([DEEPSEEK_CALLS_END], Content)
    yield from source.rest(Content)


def call_object(
    source: AnswerSource, index: int, names: Collection[str] | None = None
) -> Reading[None]:
    """An object with the name and the arguments of a call, in either order.

    The arguments are passed on as they come if the name is known by then.

    Args:
        names: Those that a call may have; ``None``: any.

    Raises:
        MalformedCallError: It is no such object.
    """
    yield from source.skip_space()
    yield from source.read("{")
    yield from source.skip_space()
    name: str | None = None
    held: str | None = None
    started = False
    while (yield from source.next_is("}")) is None:
        field = yield from source.json_string()
        yield from source.skip_space()
        yield from source.read(":")
        if field == NAME_FIELD and name is None:
            name = yield from source.json_string()
            if names is not None and name not in names:
                raise MalformedCallError("no tool has this name")
        elif field in ARGUMENT_FIELDS and not started and held is None:
            if name is None:
                held = yield from source.json_value()
            else:
                started = True
                yield from _arguments(source, index, name)
        else:
            yield from source.json_value()
        yield from source.skip_space()
        if (yield from source.next_is(",")):
            yield from source.read(",")
            yield from source.skip_space()
    yield from source.read("}")
    if name is None:
        raise MalformedCallError("a call has no name")
    if not started:
        yield CallStarted(index, name)
        yield CallArguments(index, _as_object(held or "{}"))


def _arguments(source: AnswerSource, index: int, name: str) -> Reading[None]:
    """The value of ``arguments``; some models write the object as a string."""
    yield from source.skip_space()
    if (yield from source.next_is("{")):
        yield CallStarted(index, name)
        yield from source.json_value(partial(CallArguments, index))
        return
    text = _as_object((yield from source.json_value()))
    yield CallStarted(index, name)
    yield CallArguments(index, text)


def _as_object(text: str) -> str:
    """The JSON object in ``text``, which may be a string that holds one."""
    value = json.loads(text)
    try:
        held = strict_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise MalformedCallError("the arguments are no JSON object") from error
    if held is None:
        return "{}"
    if not isinstance(held, dict):
        raise MalformedCallError("the arguments are no JSON object")
    return value if isinstance(value, str) else text


def _named_call(source: AnswerSource, index: int, name: str) -> Reading[None]:
    """A call whose name came before its arguments."""
    yield from source.skip_space()
    if not name.strip() or (yield from source.next_is("{")) is None:
        raise MalformedCallError("a call without a name or arguments")
    yield CallStarted(index, name.strip())
    yield from source.json_value(partial(CallArguments, index))


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
