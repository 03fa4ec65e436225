"""Calls of Llama 3.2 and 4 as Python: ``[name(key="value"), ...]``."""

from __future__ import annotations

import ast
import json
from itertools import count
from typing import Any

from twostroke.core.errors import InvalidRequestError
from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading
from twostroke.tools.base import CallRule, Frame, ToolFamily, ToolSchemas, WholeAnswer
from twostroke.tools.rules import quoted

MAX_CALL_CHARS = 100_000
MAX_DEPTH = 32
_MARKER, _END = "<|python_start|>", "<|python_end|>"
# JSON's words, which models write into Python too.
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _read_calls(source: AnswerSource, tools: ToolSchemas) -> Reading[None]:
    """The whole answer is a list of calls. Each is passed on when it is complete."""
    yield from source.skip_space()
    if (yield from source.next_is(_MARKER)):
        yield from source.read(_MARKER)
    if (yield from source.next_is("[")) is None:
        yield from source.rest(Content)
        return
    yield from source.read("[")
    for index in count():
        yield from source.skip_space()
        if (yield from source.next_is("]")):
            break
        text = yield from _call_text(source)
        name, arguments = _read_call(text)
        yield CallStarted(index, name)
        yield CallArguments(index, json.dumps(arguments, ensure_ascii=False))
        source.keep()
        yield from source.skip_space()
        if (yield from source.next_is(",")):
            yield from source.read(",")
    yield from source.read("]")
    if (yield from source.next_is(_END)):
        yield from source.read(_END)
    yield from source.skip_space()
    yield from source.rest(Content)


def _call_text(source: AnswerSource) -> Reading[str]:
    """``name(...)`` up to the parenthesis that closes it, outside of strings."""
    pieces: list[str] = []
    depth, quote = 0, ""
    while True:
        if (yield from source.at_end()) or len(pieces) > MAX_CALL_CHARS:
            raise MalformedCallError("a call has no end")
        character = source.take(1)
        pieces.append(character)
        if quote:
            if character == "\\":
                if (yield from source.at_end()):
                    raise MalformedCallError("a call has no end")
                pieces.append(source.take(1))
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedCallError("a call is nested too deeply")
        elif character in ")]}":
            depth -= 1
            if depth <= 0:
                return "".join(pieces)


def _read_call(text: str) -> tuple[str, dict[str, Any]]:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise MalformedCallError("no call with named arguments")
        arguments = {}
        for keyword in call.keywords:
            if keyword.arg is None:
                raise MalformedCallError("no call with named arguments")
            arguments[keyword.arg] = _value(keyword.value)
        json.dumps(arguments, allow_nan=False)
        return ast.unparse(call.func), arguments
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise MalformedCallError(f"not a call in Python: {error}") from error


def _value(node: ast.expr) -> Any:
    """The value of a literal, lists and dictionaries of literals included."""
    match node:
        case ast.Name(id=word) if word in _JSON_WORDS:
            return _JSON_WORDS[word]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [None if key is None else _value(key) for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise MalformedCallError("a key of a dictionary is no string")
            return dict(zip(names, map(_value, values), strict=True))
        case _:
            return ast.literal_eval(node)


def _call(call: CallRule) -> str:
    return call.between(f"{call.function}(", _arguments(call), ")")


def _arguments(call: CallRule) -> str:
    """Named arguments in the schema's order, with commas between those that are there."""
    rules, path, properties = call.rules, call.path, call.properties()
    for place, (name, part, _) in enumerate(properties):
        if not name.isidentifier():
            raise InvalidRequestError(f"{path} has a property that is no name", param=path)
        value = call.json_of(part, f"{path}.properties.{name}")
        rules.add(f"{call.name}_{place}", f"{quoted(f'{name}=')} {value}")
    following = ""  # what may come after an argument, its comma included
    first = ""  # what may come where no argument has come
    for place in reversed(range(len(properties))):
        argument, required = f"{call.name}_{place}", properties[place][2]
        rules.add(f"{argument}_first", f"{argument} {following}" + _or(first, not required))
        rules.add(f"{argument}_next", f'", " {argument} {following}' + _or(following, not required))
        first, following = f"{argument}_first", f"{argument}_next"
    return first


def _or(alternative: str, optional: bool) -> str:
    return f" | {alternative or chr(34) * 2}" if optional else ""


PYTHONIC = ToolFamily(
    name="pythonic",
    aliases=("llama4_pythonic",),
    marks=("func_name1(params_name1=",),
    recognised_last=True,
    special_texts=(_MARKER, _END),
    whole=WholeAnswer("\\[", _MARKER, _END),
    read=_read_calls,
    call=_call,
    frame=lambda rules: Frame("[", ", ", "]"),
)
