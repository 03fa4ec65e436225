"""Tool calls that a model writes as Python: ``[name(key="value"), ...]`` (Llama 3.2 and 4)."""

from __future__ import annotations

import ast
import json
from itertools import count
from typing import Any

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted, Content
from twostroke.text.answer_parsing.source import AnswerSource, MalformedCallError, Reading

MAX_CALL_CHARS = 100_000
MAX_DEPTH = 32
# JSON's words, which models write into Python too.
_JSON_WORDS = {"true": True, "false": False, "null": None}


def pythonic_calls(source: AnswerSource) -> Reading[None]:
    """The whole answer is a list of calls. Each is passed on when it is complete."""
    yield from source.skip_space()
    if (yield from source.next_is("<|python_start|>")):
        yield from source.read("<|python_start|>")
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
    if (yield from source.next_is("<|python_end|>")):
        yield from source.read("<|python_end|>")
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
