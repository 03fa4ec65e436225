"""The JSON of request bodies: UTF-8, every key once, and a bounded number of values.

Of two equal keys one would be ignored, and clients could not know which. Millions of values take
the parser seconds, in which the event loop would stand still.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope

from twostroke.core.errors import InvalidRequestError
from twostroke.http.body_size import SMALL_BODY, BodyMemory, held_body
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import trace_of

# Lists and objects in a body: more than messages, parts, documents and prompts together.
MAX_CONTAINERS = 2**16
MAX_KEYS = 2**16
MAX_VALUES = 2**18  # or what `max_values` says; token ids are the values that bodies have many of
_PIECE = 2**16  # bytes that are looked through between two turns of the event loop
# What it takes the event loop to receive a large body, in seconds for each byte: 2.5 ms for 1.6 MB,
# 3.8 ms for 3.2 MB on an AMD EPYC.
_RECEIVING = 1.4e-9
# What becomes of each object of a body afterwards, in seconds: it is checked, listed and rendered
# (100 ms for 8,000 thoughts in 16,000 objects on an AMD EPYC).
_CONVERTING = 6e-6

# A body's value as its route takes it, and what is wrong with it.
AsModel = Callable[[Any], tuple[Any, list[dict[str, Any]]]]


def max_values(max_model_len: int) -> int:
    """How many values a body may hold: enough for a prompt of token ids that fills the context."""
    return max(MAX_VALUES, max_model_len + MAX_KEYS)


class StrictRequest(Request):
    """A request whose body has no key twice.

    A large body becomes the model of its route on the thread that parses it. FastAPI checks bodies
    on the event loop, but a model is through at once.
    """

    def __init__(self, scope: Scope, receive: Receive, as_model: AsModel | None) -> None:
        super().__init__(scope, receive)
        self._as_model = as_model

    async def body(self) -> bytes:
        """Not read on where a zero byte shows it to be no JSON: a refusal costs little then."""
        if not hasattr(self, "_body"):
            chunks: list[bytes] = []
            async for chunk in self.stream():
                if b"\0" in chunk:
                    raise ValueError("a zero byte")
                chunks.append(chunk)
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        body, held = await self.body(), held_body(self.scope)
        limit = held.memory.max_values()
        try:
            if len(body) <= SMALL_BODY:
                return parse_body(body, limit)
            return await parse_large(body, limit, held.memory, self._as_model)
        finally:
            held.release()
            trace_of(self.scope).stage(names.READ)


class StrictRoute(APIRoute):
    """A route whose requests are ``StrictRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        as_model = None if self.body_field is None else self.body_field.validate

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive, as_model))

        return handle_strictly


async def parse_large(body: bytes, limit: int, memory: BodyMemory, as_model: AsModel | None) -> Any:
    """Parse on a thread, so that the event loop gets its turn at each call of a Python function.

    As long as receiving and parsing took, and what follows is likely to take, it rests before the
    next large body: a flood of them leaves half of the interpreter's time to the model.
    """
    loop = asyncio.get_running_loop()
    async with memory.parsing:
        await asyncio.sleep(max(0.0, memory.rested_at - loop.time()))
        seconds: list[float] = []
        try:
            return await asyncio.to_thread(_parse_timed, body, limit, as_model, seconds)
        finally:
            converting = _CONVERTING * min(body.count(b"{"), MAX_CONTAINERS)
            memory.rested_at = loop.time() + sum(seconds) + _RECEIVING * len(body) + converting


def _parse_timed(body: bytes, limit: int, as_model: AsModel | None, seconds: list[float]) -> Any:
    began = time.thread_time()
    try:
        value = parse_body(body, limit)
        model = None if as_model is None else as_model(value)[0]
        # What is wrong with another value FastAPI finds again, and says.
        return model if isinstance(model, BaseModel) else value
    finally:
        seconds.append(time.thread_time() - began)


def parse_body(body: bytes, limit: int) -> Any:
    """The value that a body holds.

    Args:
        limit: How many values it may hold.

    Raises:
        InvalidRequestError: It holds too many values, or a key twice.
        ValueError: It is not JSON, or not UTF-8.
    """
    _check_size(body, limit)
    text = body.decode("utf-8-sig")
    if len(body) <= SMALL_BODY:
        return json.loads(text, object_pairs_hook=_object)
    # The parser holds the interpreter's lock, but not while it calls these.
    return json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_real)


def _check_size(body: bytes, limit: int) -> None:
    limits = {
        "lists and objects": (b"[{", MAX_CONTAINERS),
        "keys": (b":", MAX_KEYS),
        "values": (b",", limit),
    }
    # Those in texts do not count, but most bodies have too few of any for that to matter.
    limits = {
        name: (marks, most) for name, (marks, most) in limits.items() if _count(body, marks) > most
    }
    if not limits:
        return
    totals = dict.fromkeys(limits, 0)
    for piece in _without_texts(body):
        for name, (marks, most) in limits.items():
            totals[name] += _count(piece, marks)
            if totals[name] > most:
                raise InvalidRequestError(
                    f"the body holds more than {most} {name}", hint="send fewer"
                )


def _count(text: bytes, marks: bytes) -> int:
    return sum(text.count(mark) for mark in marks)


def _without_texts(body: bytes) -> Iterator[bytes]:
    """The body without its texts, in pieces; what follows a mistake may be wrong."""
    in_text, carried = 0, b""
    for start in range(0, len(body), _PIECE):
        piece = carried + body[start : start + _PIECE]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        end = len(piece) - num_backslashes % 2  # what it escapes lies in the next piece
        carried = piece[end:]
        parts = piece[:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[in_text::2])
        in_text = (in_text + len(parts) - 1) % 2


def _integer(digits: str) -> int:
    return int(digits)


def _real(digits: str) -> float:
    return float(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidRequestError(
                    f"the body has {name[:100]!r} twice in one object", param=name[:100]
                )
            seen.add(name)
    return value
