"""``GET /v1/inspect/overview``: a long part of time in few rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import AdminKeyNeededError, InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.source import StepSource

MAX_REQUESTS = 20_000
MAX_ROWS = 4096


def overview_router(find_source: Callable[[], StepSource]) -> APIRouter:
    """``GET /v1/inspect/overview``.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/inspect/overview", response_class=Response)
    async def overview(
        request: Request,
        begin: float,
        end: float,
        max_steps: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 1024,
    ) -> Response:
        """Steps and requests between two times on the engine's clock."""
        if not caller_of(request.scope).admin:
            raise AdminKeyNeededError(
                "the overview shows the requests of all keys: it needs an admin key"
            )
        for name, value in (("begin", begin), ("end", end)):
            if not isfinite(value):
                raise InvalidRequestError(f"{name} must be finite", param=name)
        if end <= begin:
            raise InvalidRequestError("end must be after begin", param="end")
        answer = await find_source().overview(begin, end, max_steps)
        answer.left_out = max(0, len(answer.requests) - MAX_REQUESTS)
        answer.requests = answer.requests[:MAX_REQUESTS]
        body = await asyncio.to_thread(msgspec.json.encode, answer)
        return Response(body, headers=HEADERS, media_type="application/json")

    return router
