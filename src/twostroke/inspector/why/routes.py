"""``/v1/inspect/waits`` and ``/v1/inspect/bound``: why, in seconds and in shares."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import (
    AdminKeyNeededError,
    ConfigError,
    InvalidRequestError,
    ModelLoadError,
)
from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.caller import caller_of
from twostroke.inspector.model.facts import FindFacts
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.source import RequestSource
from twostroke.inspector.why.shown import Asked, shown_bound
from twostroke.inspector.why.waits import MinuteWaits, RequestWaits
from twostroke.questions.model_facts import Ceilings, ModelFacts


def why_router(
    find_source: Callable[[], RequestSource],
    find_facts: FindFacts,
    find_client: Callable[[], EngineClient] | None = None,
    find_measured: Callable[[], Ceilings | None] = lambda: None,
) -> APIRouter:
    """Seconds waited by reason, and what bounds the server.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
        find_facts: The model that is shown; ``None`` where nothing tells it.
        find_client: The engine that runs now, if there is one; raises until it is loaded.
        find_measured: The ceilings that a measurement found, once one was made.
    """
    router = APIRouter(include_in_schema=False)
    _add_waits(router, find_source)
    _add_bound(router, find_source, find_facts, find_client, find_measured)
    return router


def _add_waits(router: APIRouter, find_source: Callable[[], RequestSource]) -> None:
    @router.get("/v1/inspect/waits", response_class=Response)
    async def waits(
        request: Request, id: Annotated[str, Query(min_length=1, max_length=200)]
    ) -> Response:
        """Seconds that a request waited, by reason; null where it is not known."""
        caller, source = caller_of(request.scope), find_source()
        book = await source.waits()
        found = book.of(id)
        if not caller.admin:
            own = await source.requests_of(caller.tenant)
            if found is not None:
                found = _only_own(found, own) if found.request_id in own else None
        return _json(found)

    @router.get("/v1/inspect/waits/minutes", response_class=Response)
    async def minutes(request: Request, begin: float, end: float) -> Response:
        """Seconds that all requests waited together, by minute and reason."""
        _only_for_admins(request)
        if not (isfinite(begin) and isfinite(end)):
            raise InvalidRequestError("begin and end must be finite", param="begin")
        book = await find_source().waits()
        found: list[MinuteWaits] = book.minutes(begin, end)
        return _json(found)


def _add_bound(
    router: APIRouter,
    find_source: Callable[[], RequestSource],
    find_facts: FindFacts,
    find_client: Callable[[], EngineClient] | None,
    find_measured: Callable[[], Ceilings | None],
) -> None:
    @router.get("/v1/inspect/bound", response_class=Response)
    async def bound(
        request: Request,
        to: Annotated[int | None, Query(ge=0, le=2**62)] = None,
        seconds: Annotated[float, Query(ge=0.1, le=60)] = 5.0,
        tpot: Annotated[float | None, Query(gt=0, le=3600)] = None,
    ) -> Response:
        """What bounds the server in the ``seconds`` before now, or before the end of step ``to``.

        ``tpot``: the limit for how many more users fit.
        """
        _only_for_admins(request)
        facts = await _known(find_facts)
        measured = None if facts is None else find_measured()
        since = None if to is not None or find_client is None else find_client().status.busy_since
        asked = Asked(to, seconds, tpot)
        return _json(await shown_bound(find_source(), asked, facts, measured, since))


def _only_own(waits: RequestWaits, own: set[str]) -> RequestWaits:
    """Leave out the ids of other keys' requests."""
    lost = [
        msgspec.structs.replace(item, by=item.by if item.by in own else None)
        for item in waits.preemptions
    ]
    return msgspec.structs.replace(waits, preemptions=lost)


async def _known(find_facts: FindFacts) -> ModelFacts | None:
    try:
        return await find_facts()
    except (ConfigError, ModelLoadError):
        return None


def _only_for_admins(request: Request) -> None:
    if not caller_of(request.scope).admin:
        raise AdminKeyNeededError(
            "what bounds the whole engine concerns all tenants, so it needs an admin key",
            hint="make one with twostroke key NAME --admin",
        )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
