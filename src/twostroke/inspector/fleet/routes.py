"""``/v1/inspect/fleet``: several replicas, how full each was, and where requests went."""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.inspector.fleet.recorded_fleet import RecordedFleet
from twostroke.inspector.routes import HEADERS

MAX_COLUMNS = 2048
MAX_ROUTES = 1000


def fleet_router(fleet: RecordedFleet, shown: int) -> APIRouter:
    """What the page of a fleet asks.

    Args:
        shown: The replica whose steps are at ``/v1/inspect/steps``.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/inspect/fleet", response_class=Response)
    async def facts() -> Response:
        """The replicas, the router, and figures of the whole time."""
        return _json(await asyncio.to_thread(fleet.facts, shown))

    @router.get("/v1/inspect/fleet/occupancy", response_class=Response)
    async def occupancy(
        begin: float | None = None,
        end: float | None = None,
        columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = 512,
    ) -> Response:
        """Averages in columns between two times, by default the first and the last."""
        begin = fleet.begin if begin is None else begin
        end = fleet.end if end is None else end
        if not (begin < end and isfinite(end - begin)):
            raise InvalidRequestError("end must come after begin", param="end")
        return _json(await asyncio.to_thread(fleet.strips, begin, end, columns))

    @router.get("/v1/inspect/fleet/routes", response_class=Response)
    async def routes(
        before: float | None = None,
        count: Annotated[int, Query(ge=1, le=MAX_ROUTES)] = 50,
        replica: Annotated[int | None, Query(ge=0)] = None,
    ) -> Response:
        """The last ``count`` routes up to a time, of one replica or of all."""
        if replica is not None and replica >= len(fleet.replicas):
            raise InvalidRequestError(
                f"there are {len(fleet.replicas)} replicas, from 0 on", param="replica"
            )
        before = fleet.end if before is None else before
        return _json(await asyncio.to_thread(fleet.latest_routes, before, count, replica))

    return router


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
