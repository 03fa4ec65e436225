"""Bodies as JSON in which every key is there once: of two, one would be ignored, and which one nobody can know."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from twostroke.errors import InvalidRequestError


class StrictRequest(Request):
    """A request whose body has no key twice."""

    async def json(self) -> Any:
        return json.loads(await self.body(), object_pairs_hook=_object)


class StrictRoute(APIRoute):
    """A route that reads its body so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequestError(f"the body has {name[:100]!r} twice in one object", param=name[:100])
    return value
