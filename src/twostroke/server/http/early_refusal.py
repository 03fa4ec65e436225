"""Calls that would come too late are refused before their bodies are parsed.

Beyond its capacity a server refuses most calls, so a refusal must cost little: to parse, check and
tokenise a call first takes ten times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.core.errors import PredictedLateError
from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.caller import caller_of
from twostroke.http.body_size import SMALL_BODY
from twostroke.http.request_id import ARRIVED_KEY, request_id
from twostroke.server.http.errors import error_response

# Of the APIs whose calls have a first token; Ollama's have no time of their own.
PATHS = frozenset(
    path
    for name in ("/completions", "/chat/completions", "/messages", "/responses")
    for path in (name, f"/v1{name}")
) | {"/api/chat", "/api/generate"}
OWN_TARGET = b"deadline_ms"


class EarlyRefusal:
    """Asks the engine whether the least of calls would be in time. Plain ASGI, behind the keys.

    A call that names a time of its own is judged by its route, and so is one with a large body,
    which would have to be held to know.

    Args:
        client: The engine that takes new work; ``None`` while none does.
    """

    def __init__(self, app: ASGIApp, client: Callable[[], EngineClient | None]) -> None:
        self._app = app
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        if refusal is not None:
            messages = await _read(receive)
            body = b"".join(message.get("body", b"") for message in messages)
            if OWN_TARGET not in body:
                await error_response(refusal)(scope, receive, send)
                return
            receive = _again(messages, receive)
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PredictedLateError | None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
            return None
        client = self._client()
        if client is None or not _is_small(scope):
            return None
        caller, now = caller_of(scope), time.monotonic()
        waited = now - scope.get(ARRIVED_KEY, now)
        try:
            client.check_in_time(caller.tenant, request_id(scope), waited)
        except PredictedLateError as error:
            return error
        return None


def _is_small(scope: Scope) -> bool:
    length: bytes = next((v for name, v in scope["headers"] if name == b"content-length"), b"")
    return length.isdigit() and len(length) < 20 and int(length) <= SMALL_BODY


async def _read(receive: Receive) -> list[Message]:
    """The messages of a body, the last included."""
    messages = [await receive()]
    while messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _again(messages: list[Message], receive: Receive) -> Receive:
    """What gives ``messages`` once more, and then what follows them."""
    left = iter(messages)

    async def receive_again() -> Message:
        message = next(left, None)
        return await receive() if message is None else message

    return receive_again
