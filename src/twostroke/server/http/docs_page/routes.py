"""The routes of the page and its script, which no other host and no inline script may join."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

from twostroke.http.page_headers import page_headers

FILES = Path(__file__).parent
SCRIPT = "rapidoc-min.js"
# Styles may stand inline: RapiDoc writes its own into the page. Scripts may not.
HEADERS = page_headers(styles="'unsafe-inline'", images="'self' data:")


def docs_router() -> APIRouter:
    """``GET /docs`` and what it loads."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs", response_class=Response)
    def docs() -> Response:
        """The page; read at each call, since that is rare."""
        page = (FILES / "docs.html").read_bytes()
        return Response(page, media_type="text/html", headers=HEADERS)

    @router.get(f"/docs/{SCRIPT}", response_class=Response)
    def script() -> Response:
        """RapiDoc."""
        return Response(
            (FILES / SCRIPT).read_bytes(),
            media_type="text/javascript",
            headers={**HEADERS, "cache-control": "max-age=3600"},
        )

    return router
