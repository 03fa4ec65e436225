"""The JSON of request bodies: every key once, and a bounded number of lists and objects.

Of two equal keys one would be ignored, and clients could not know which. Millions of empty lists
take the parser seconds, in which the event loop stands still.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError

# Lists and objects in a body: more than messages, parts, documents and prompts together.
MAX_CONTAINERS = 2**16
# The end may be missing, else each quote of a text without one would be tried as its beginning.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class StrictRequest(Request):
    """A request whose body has no key twice."""

    async def json(self) -> Any:
        body = await self.body()
        _check_containers(body)
        return json.loads(body, object_pairs_hook=_object)


class StrictRoute(APIRoute):
    """A route whose requests are ``StrictRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def _check_containers(body: bytes) -> None:
    # Brackets inside of texts do not count, but most bodies have too few of any for that to matter.
    if (
        _num_brackets(body) <= MAX_CONTAINERS
        or _num_brackets(_STRING.sub(b"", body)) <= MAX_CONTAINERS
    ):
        return
    raise InvalidRequestError(
        f"the body holds more than {MAX_CONTAINERS} lists and objects", hint="send fewer"
    )


def _num_brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


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
