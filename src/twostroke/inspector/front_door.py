"""``/``: browsers are led to the page; programs get what the API has there."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

CHAT = "inspect/#/chat"
PAGE = "inspect/"


class FrontDoor:
    """Plain ASGI, before keys are looked at: where it leads needs none, and holds no data.

    Args:
        leads_to: Named relative to ``/``, so that a prefix before it stays.
    """

    def __init__(self, app: ASGIApp, leads_to: str) -> None:
        self._app = app
        self._leads_to = leads_to

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _asks_for_page(scope):
            redirect = RedirectResponse(self._leads_to, 307, headers={"vary": "accept"})
            await redirect(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _asks_for_page(scope: Scope) -> bool:
    # Below a prefix, the path may have been relieved of it or not.
    roots = ("/", f"{scope.get('root_path', '')}/")
    if scope["method"] != "GET" or scope["path"] not in roots:
        return False
    return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
