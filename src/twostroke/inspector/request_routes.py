"""``/v1/inspect/request``: what the page shows of one request beside its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from twostroke.gateway.caller import caller_of
from twostroke.inspector.content import MAX_TOKENS, TokenPage
from twostroke.inspector.request_blocks import RequestBlocks, blocks_of
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.source import RequestSource
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.tracing.stations import CallStations

MAX_FOUND = 100
RequestId = Annotated[str, Query(min_length=1, max_length=200)]


class RequestDetails(msgspec.Struct):
    """The answer of ``/v1/inspect/request``; what nobody knows, or the caller may not, is null.

    Attributes:
        call: Its stations over HTTP.
        blocks: Only where asked for.
    """

    call: CallStations | None = None
    blocks: RequestBlocks | None = None


def request_router(find_source: Callable[[], RequestSource]) -> APIRouter:
    """Stations, blocks and, where they are kept, tokens of one request.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/inspect/request", response_class=Response)
    async def details(
        request: Request,
        id: RequestId,
        step: Annotated[int | None, Query(ge=-1, le=2**62)] = None,
        blocks: bool = False,
    ) -> Response:
        """How it came and went over HTTP; with ``blocks`` also its KV blocks."""
        source, caller = find_source(), caller_of(request.scope)
        found = RequestDetails()
        call = await source.call(id)
        if call is not None and (caller.admin or call.tenant == caller.tenant):
            found.call = call
        if blocks:
            visible = None
            if not caller.admin:
                own = await source.requests_of(caller.tenant)
                visible = Visibility(caller.tenant, own)
            if visible is None or visible(id):
                state = (await source.state(step, with_blocks=True)).blocks
                if state is not None:
                    found.blocks = await asyncio.to_thread(blocks_of, state, id, visible)
        return _json(found)

    @router.get("/v1/inspect/find", response_class=Response)
    async def find(
        request: Request,
        text: Annotated[str, Query(min_length=1, max_length=200)],
        count: Annotated[int, Query(ge=1, le=MAX_FOUND)] = 8,
    ) -> Response:
        """Requests with ``text`` in id, tenant or a label, of all that is remembered."""
        caller = caller_of(request.scope)
        tenant = None if caller.admin else caller.tenant
        return _json(await find_source().find(text, tenant, count))

    @router.get("/v1/inspect/tokens", response_class=Response)
    async def tokens(
        request: Request,
        id: RequestId,
        begin: Annotated[int, Query(alias="from", ge=0, le=2**31)] = 0,
        count: Annotated[int, Query(ge=1, le=MAX_TOKENS)] = MAX_TOKENS,
    ) -> Response:
        """Its tokens from position ``from`` on; null where they are not kept."""
        source, caller = find_source(), caller_of(request.scope)
        page: TokenPage | None = None
        tenant = source.tenant_of_content(id)
        if tenant is not None and (caller.admin or tenant == caller.tenant):
            page = await asyncio.to_thread(source.tokens, id, begin, count)
        return _json(page)

    return router


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
