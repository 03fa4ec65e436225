"""Calls of Qwen3-Coder: a tag for the function and one for each parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading
from twostroke.tools.base import DEFINITIONS, CallRule, Frame, ToolFamily, ToolSchemas
from twostroke.tools.rules import quoted

# One line feed on either side of a value belongs to the tags.
_VALUE_ENDS = ("\n</parameter>", "</parameter>")
_KEPT_OF_TEXT = DEFINITIONS | {"type", "enum", "const"}


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
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
        if _is_text(properties.get(key.strip())):
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


def _is_text(schema: object) -> bool:
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


def _call(call: CallRule) -> str:
    before = f"<tool_call>\n<function={call.function}>\n"
    return call.between(before, _arguments(call), "</function>\n</tool_call>")


def _arguments(call: CallRule) -> str:
    rules, path, properties = call.rules, call.path, call.properties()
    for name, part, _ in properties:
        if isinstance(part, Mapping) and _is_text(part):
            call.keep_only(part, _KEPT_OF_TEXT, f"{path}.properties.{name}")
    parts = []
    for place, (name, part, required) in enumerate(properties):
        if ">" in name or "\n" in name:
            raise InvalidRequestError(f"{path} has a property that no tag can name", param=path)
        key = f"{call.name}_{place}"
        opening = rules.literal(f"<parameter={name}>\n")
        if listed := _listed_texts(part):
            texts = " | ".join(quoted(text) or '""' for text in listed)
            value = f"({texts}) {rules.literal(chr(10) + '</parameter>')}"
        elif isinstance(part, Mapping) and _is_text(part) and not {"enum", "const"} & part.keys():
            value = rules.after_text("\n</parameter>", f"{key}_text")
        else:
            value = f"{call.json_of(part, f'{path}.properties.{name}')} {quoted(chr(10))}"
            value += f" {rules.literal('</parameter>')}"
        rules.add(key, f"{opening} {value} {quoted(chr(10))}")
        parts.append(key if required else f"{key}?")
    return " ".join(parts)


def _listed_texts(part: Any) -> list[str]:
    """The texts that a parameter may be, if its schema lists them."""
    if not isinstance(part, Mapping) or not _is_text(part):
        return []
    values = [part["const"]] if "const" in part else part.get("enum")
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


QWEN3_CODER = ToolFamily(
    name="qwen3_coder",
    aliases=("qwen3_xml",),
    marks=("<function=",),
    special_texts=("<tool_call>", "</tool_call>"),
    trigger="<tool_call>",
    read=_read_calls,
    call=_call,
    frame=lambda rules: Frame(separator="\n"),
)
