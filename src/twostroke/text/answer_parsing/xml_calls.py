"""Tool calls that Qwen3-Coder writes: a tag for the function and one for each parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading

# A name to the JSON schema of its parameters.
ToolSchemas = Mapping[str, Mapping[str, Any]]
# One line feed on either side of a value belongs to the tags.
_VALUE_ENDS = ("\n</parameter>", "</parameter>")


def xml_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>``.

    Values are plain text. They become JSON by the types in ``tools``: a string where the schema
    allows nothing else or does not know the parameter, otherwise the JSON that the text is, if it
    is any.
    """
    indices = count()
    openings = ("<tool_call>", "<function=")
    while (marker := (yield from source.until(openings, Content))) is not None:
        if marker == "<tool_call>":
            yield from source.skip_space()
            yield from source.read("<function=")
        yield from _function(source, next(indices), tools)
        yield from source.skip_space()
        if (yield from source.next_is("</tool_call>")):
            yield from source.read("</tool_call>")


def _function(source: AnswerSource, index: int, tools: ToolSchemas) -> Reading[None]:
    name, _ = yield from source.text_until(">")
    if not (name := name.strip()):
        raise MalformedCallError("a call has no name")
    properties = tools.get(name, {}).get("properties")
    if not isinstance(properties, Mapping):  # schemas of tools that are not strict may be anything
        properties = {}
    yield CallStarted(index, name)
    yield CallArguments(index, "{")
    separator = ""
    while True:
        yield from source.skip_space()
        if (yield from source.next_is("<parameter=")) is None:
            break
        yield from source.read("<parameter=")
        key, _ = yield from source.text_until(">")
        yield CallArguments(index, f"{separator}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        separator = ", "
        if (yield from source.next_is("\n")):
            yield from source.read("\n")
        if is_text(properties.get(key.strip())):
            yield CallArguments(index, '"')
            yield from source.until(_VALUE_ENDS, partial(_escaped, index))
            yield CallArguments(index, '"')
        else:
            value, _ = yield from source.text_until(*_VALUE_ENDS)
            yield CallArguments(index, _as_json(value))
    yield CallArguments(index, "}")
    yield from source.read("</function>")


def _escaped(index: int, text: str) -> CallArguments:
    return CallArguments(index, json.dumps(text, ensure_ascii=False)[1:-1])


def is_text(schema: object) -> bool:
    """Whether a parameter's value stands as it is, and not as JSON."""
    if not isinstance(schema, Mapping) or schema.get("type") in ("string", ["string"]):
        return True
    values = schema.get("enum")
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _as_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
