"""``--root-path``: the server below a path of a proxy, which may cut it off or not."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Lets all layers see paths without the prefix; links and the API document have it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["root_path"] = self._prefix
            if scope["path"].startswith(self._prefix + "/"):
                scope["path"] = scope["path"].removeprefix(self._prefix)
        await self._app(scope, receive, send)
