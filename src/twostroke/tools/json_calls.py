"""A call as JSON, as several families write it: an object, or a name and an object."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial

from twostroke.text.answer_parsing.parts import CallArguments, CallStarted
from twostroke.text.answer_parsing.source import (
    AnswerSource,
    MalformedCallError,
    Reading,
    strict_json,
)

NAME_FIELD = "name"
ARGUMENT_FIELDS = ("arguments", "parameters")


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


def named_call(source: AnswerSource, index: int, name: str) -> Reading[None]:
    """A call whose name came before its arguments.

    Raises:
        MalformedCallError: One of the two is not there.
    """
    yield from source.skip_space()
    if not name.strip() or (yield from source.next_is("{")) is None:
        raise MalformedCallError("a call without a name or arguments")
    yield CallStarted(index, name.strip())
    yield from source.json_value(partial(CallArguments, index))
