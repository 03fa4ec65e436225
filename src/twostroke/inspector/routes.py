"""``/v1/inspect/``: what the page reads, and what scripts may read too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from twostroke.gateway.caller import caller_of
from twostroke.gateway.feeds import Feeds
from twostroke.inspector.blocks import BlockMap, draw_blocks
from twostroke.inspector.source import Fit, FrameLimits, StepSource
from twostroke.inspector.stream import stream_frames
from twostroke.observability.frames.columns import MAX_SHARES, MAX_STEPS
from twostroke.observability.frames.visibility import Visibility
from twostroke.observability.snapshot import RequestSnapshot

STEP = Query(ge=-1, le=2**62)
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ShownState(msgspec.Struct):
    """The answer of ``/v1/inspect/state``; ``blocks`` only where asked for and known.

    ``some_left_out``: the queue is long, and not all that waits is in ``waiting``.
    """

    time: float
    running: list[RequestSnapshot]
    waiting: list[RequestSnapshot]
    ended: list[RequestSnapshot]
    blocks: BlockMap | None = None
    some_left_out: bool = False


class InspectRoutes:
    """The feed, ranges of steps, and the state at a moment.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
        feeds: Counts those that are open, other ones of the server included.
    """

    def __init__(self, find_source: Callable[[], StepSource], feeds: Feeds | None = None) -> None:
        self._find_source = find_source
        self._feeds = feeds or Feeds()

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)
        router.add_api_route("/v1/inspect", self.describe, methods=["GET"], response_class=Response)
        router.add_api_route(
            "/v1/inspect/events", self.events, methods=["GET"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/steps", self.steps, methods=["GET"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/state", self.state, methods=["GET"], response_class=Response
        )
        return router

    async def describe(self, request: Request) -> Response:
        """What is open here: engine, bounds, configuration."""
        description = self._find_source().describe()
        description.all_tenants = caller_of(request.scope).admin
        return _json(description)

    async def events(
        self,
        request: Request,
        since: Annotated[int | None, STEP] = None,
        last_event_id: Annotated[int | None, Header(ge=-1, le=2**62)] = None,
        request_id: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
        tenant: str | None = None,
    ) -> Response:
        """New steps, as they come; after ``since`` or the header ``Last-Event-ID``."""
        source = self._find_source()
        visible = await _visibility(source, request, request_id, tenant)
        if since is None:
            since = source.describe().last_step if last_event_id is None else last_event_id
        frames = self._feeds.counted(
            stream_frames(source, since, visible), caller_of(request.scope)
        )
        headers = {**HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers)

    async def steps(
        self,
        request: Request,
        begin: Annotated[int | None, Query(alias="from", ge=0, le=2**62)] = None,
        to: Annotated[int | None, STEP] = None,
        at: float | None = None,
        count: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 2048,
        max_steps: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS,
        max_shares: Annotated[int, Query(ge=1, le=MAX_SHARES)] = MAX_SHARES,
        fit: Fit | None = None,
        request_id: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
        tenant: str | None = None,
    ) -> Response:
        """Steps ``from`` to ``to``, both included, merged where they are more than the limits.

        Without ``from`` the ``count`` steps up to ``to``, or up to the time ``at``: of these the
        last ones that need not be merged. ``fit`` says which way to take.
        """
        source = self._find_source()
        visible = await _visibility(source, request, request_id, tenant)
        if to is None:
            to = source.describe().last_step if at is None else source.step_at(at)
        fit = fit or ("last" if begin is None else "merge")
        if begin is None:
            begin = max(0, to - count + 1)
        frame = await source.frame(begin, to + 1, visible, FrameLimits(max_steps, max_shares, fit))
        return _json(frame)

    async def state(
        self,
        request: Request,
        step: Annotated[int | None, STEP] = None,
        blocks: bool = False,
    ) -> Response:
        """What runs, waits and has ended; with ``blocks`` also the KV cache."""
        source = self._find_source()
        visible = await _visibility(source, request, [], None)
        snapshot = await source.state(step, with_blocks=blocks)
        shown = ShownState(
            snapshot.time,
            _shown(snapshot.running, visible),
            _shown(snapshot.waiting, visible),
            _shown(snapshot.ended, visible),
            some_left_out=visible is None and snapshot.waiting_left_out > 0,
        )
        if snapshot.blocks is not None:
            shown.blocks = await asyncio.to_thread(draw_blocks, snapshot.blocks, visible)
        return _json(shown)


async def _visibility(
    source: StepSource, request: Request, request_ids: list[str], tenant: str | None
) -> Visibility | None:
    """What the caller may see of what it asks for; ``None``: everything."""
    caller = caller_of(request.scope)
    if not caller.admin:
        tenant = caller.tenant
    only = request_ids or None
    if tenant is None:
        return None if only is None else Visibility(None, only=only)
    return Visibility(tenant, await source.requests_of(tenant), only)


def _shown(requests: list[RequestSnapshot], visible: Visibility | None) -> list[RequestSnapshot]:
    return [r for r in requests if visible is None or visible(r.request_id)]


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
