"""How bodies of this API arrive: as JSON, whatever a client says that they are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

from fastapi import Request
from starlette.responses import Response

from twostroke.server.http.body_json import StrictRoute

_JSON = (b"content-type", b"application/json")


class OllamaRoute(StrictRoute):
    """Reads JSON also where the header says otherwise, as that of a bare ``curl -d`` does.

    Not from web pages: without JSON's type a browser sends a page's request to another site
    without asking it first.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_any_type(request: Request) -> Response:
            _call_it_json(request.scope)
            return await handle(request)

        return handle_any_type


def _call_it_json(scope: MutableMapping[str, Any]) -> None:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    if not any(name == b"origin" or name.startswith(b"sec-fetch-") for name, _ in headers):
        scope["headers"] = [*(h for h in headers if h[0] != _JSON[0]), _JSON]
