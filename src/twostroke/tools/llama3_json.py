"""Calls of Llama 3: the whole answer is JSON objects."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from twostroke.text.answer_parsing.parts import Content
from twostroke.text.answer_parsing.source import AnswerSource, Reading
from twostroke.tools.base import CallRule, Frame, ToolFamily, ToolSchemas, WholeAnswer
from twostroke.tools.json_calls import call_object

_MARKER = "<|python_tag|>"


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """The whole answer is ``{"name": ..., "parameters": {...}}``, several with ``;`` between them.

    ``<|python_tag|>`` may stand before it. Without any mark, an object that names none of the tools
    is content.
    """
    marked = False
    yield from source.skip_space()
    if (yield from source.next_is(_MARKER)):
        yield from source.read(_MARKER)
        yield from source.skip_space()
        marked = True
    if (yield from source.next_is("{")) is None:
        marked = (yield from source.until([_MARKER], Content)) is not None
    indices = count()
    while not (yield from source.at_end()):
        source.keep()
        yield from call_object(source, next(indices), None if marked else tools)
        yield from source.skip_space()
        if (yield from source.next_is(";")):
            yield from source.read(";")
            yield from source.skip_space()


def _call(call: CallRule) -> str:
    if call.is_choice:
        arguments = json.loads(call.inlined(call.schema, call.path))
        return f"%json {json.dumps(_object_schema(call.function, arguments))}"
    before = f'{{"name": {json.dumps(call.function)}, "parameters": '
    return call.between(before, call.json(), "}")


def _object_schema(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The schema of a whole call, from the rewritten one of its arguments."""
    shared = {key: arguments.pop(key) for key in ("x-guidance", "$defs") if key in arguments}
    definitions = shared.get("$defs", {})
    if _refers_to_root([arguments, definitions]):
        # There is another root now.
        definitions = _redirected({**definitions, "arguments": arguments})
        arguments = {"$ref": "#/$defs/arguments"}
    return {
        "x-guidance": shared["x-guidance"],
        "$defs": definitions,
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _refers_to_root(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("$ref") == "#" or any(map(_refers_to_root, value.values()))
    return isinstance(value, list) and any(map(_refers_to_root, value))


def _redirected(value: Any) -> Any:
    if isinstance(value, dict):
        redirected = {key: _redirected(item) for key, item in value.items()}
        return redirected | ({"$ref": "#/$defs/arguments"} if value.get("$ref") == "#" else {})
    return [_redirected(item) for item in value] if isinstance(value, list) else value


LLAMA3_JSON = ToolFamily(
    name="llama3_json",
    aliases=("llama4_json",),
    marks=(_MARKER, '{"name": function name, "parameters":'),
    recognised_last=True,
    special_texts=(_MARKER,),
    whole=WholeAnswer("{", _MARKER, has_text=True),
    read=_read_calls,
    call=_call,
    frame=lambda rules: Frame(separator="; "),
)
