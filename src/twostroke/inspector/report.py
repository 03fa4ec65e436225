"""Reports of simulations: a page of the inspector, or one file that can be mailed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from twostroke.inspector.one_file import one_file
from twostroke.inspector.routes import HEADERS

ENTRY = "pages/report/mailed.js"
SHEETS = ("app.css", "lib/share/share.css", "pages/report.css")

Runs = Sequence[Mapping[str, Any]]


def report_page(runs: Runs) -> str:
    """The page as one file.

    Args:
        runs: Runs as ``twostroke simulate --output-json`` writes them, in the order of the page.
    """
    return one_file(ENTRY, SHEETS, ("report", {"runs": runs}))


def report_router(runs: Runs) -> APIRouter:
    """``GET /v1/inspect/report``: the same runs, for the page that is served."""
    body = json.dumps({"runs": runs}, separators=(",", ":"), allow_nan=False)
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/inspect/report", response_class=Response)
    async def report() -> Response:
        return Response(body, headers=HEADERS, media_type="application/json")

    return router
