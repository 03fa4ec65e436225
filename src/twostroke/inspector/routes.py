"""``/v1/inspect/``: what the page reads, and what scripts may read too."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import Caller, caller_of
from twostroke.inspector.blocks import BlockMap, draw_blocks
from twostroke.inspector.columns import MAX_SHARES, MAX_STEPS
from twostroke.inspector.source import Fit, StepSource
from twostroke.inspector.stream import stream_frames
from twostroke.inspector.visibility import Visibility
from twostroke.observability.snapshot import RequestState

MAX_STREAMS = 32
MAX_OF_ONE_KEY = 8  # so that a key which watches too much leaves room for others and for the admin
STEP = Query(ge=-1, le=2**62)
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ShownState(msgspec.Struct):
    """The answer of ``/v1/inspect/state``; ``blocks`` only where asked for and known.

    ``some_left_out``: the queue is long, and not all that waits is in ``waiting``.
    """

    time: float
    running: list[RequestState]
    waiting: list[RequestState]
    ended: list[RequestState]
    blocks: BlockMap | None = None
    some_left_out: bool = False


def inspect_router(find_source: Callable[[], StepSource]) -> APIRouter:
    """The feed, ranges of steps, and the state at a moment.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
    """
    router = APIRouter(include_in_schema=False)
    streams = _Streams()

    @router.get("/v1/inspect", response_class=Response)
    async def describe(request: Request) -> Response:
        """What is open here: engine, bounds, configuration."""
        description = find_source().describe()
        description.all_tenants = caller_of(request.scope).admin
        return _json(description)

    @router.get("/v1/inspect/events", response_class=Response)
    async def events(
        request: Request,
        since: Annotated[int | None, STEP] = None,
        last_event_id: Annotated[int | None, Header(ge=-1, le=2**62)] = None,
        request_id: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006
        tenant: str | None = None,
    ) -> Response:
        """New steps, as they come; after ``since`` or the header ``Last-Event-ID``."""
        source = find_source()
        visible = await _visibility(source, request, request_id, tenant)
        if since is None:
            since = source.describe().last_step if last_event_id is None else last_event_id
        frames = streams.counted(stream_frames(source, since, visible), caller_of(request.scope))
        headers = {**HEADERS, "x-accel-buffering": "no"}
        return StreamingResponse(frames, media_type="text/event-stream", headers=headers)

    @router.get("/v1/inspect/steps", response_class=Response)
    async def steps(
        request: Request,
        begin: Annotated[int | None, Query(alias="from", ge=0, le=2**62)] = None,
        to: Annotated[int | None, STEP] = None,
        at: float | None = None,
        count: Annotated[int, Query(ge=1, le=65536)] = 2048,
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
        source = find_source()
        visible = await _visibility(source, request, request_id, tenant)
        if to is None:
            to = source.describe().last_step if at is None else source.step_at(at)
        fit = fit or ("last" if begin is None else "merge")
        if begin is None:
            begin = max(0, to - count + 1)
        frame = await source.frame(
            begin, to + 1, visible, max_steps=max_steps, max_shares=max_shares, fit=fit
        )
        return _json(frame)

    @router.get("/v1/inspect/state", response_class=Response)
    async def state(
        request: Request,
        step: Annotated[int | None, STEP] = None,
        blocks: bool = False,
    ) -> Response:
        """What runs, waits and has ended; with ``blocks`` also the KV cache."""
        source = find_source()
        visible = await _visibility(source, request, [], None)
        snapshot = await source.state(step, with_blocks=blocks)
        shown = ShownState(
            snapshot.time,
            _shown(snapshot.running, visible),
            _shown(snapshot.waiting, visible),
            _shown(snapshot.ended, visible),
            some_left_out=snapshot.waiting_left_out > 0,
        )
        if snapshot.blocks is not None:
            shown.blocks = await asyncio.to_thread(draw_blocks, snapshot.blocks, visible)
        return _json(shown)

    return router


class _Streams:
    """Counts open streams: each costs the event loop some time."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def counted(self, frames: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        """The same frames.

        Raises:
            QueueFullError: Too many pages are open, or too many of this caller's.
        """
        if full := self._why_full(caller):
            raise QueueFullError(full, hint="close one of them")
        return self._count(frames, caller)

    def _why_full(self, caller: Caller) -> str | None:
        if self._open.total() >= MAX_STREAMS:
            return f"{MAX_STREAMS} pages watch this server already"
        if not caller.admin and self._open[caller.tenant] >= MAX_OF_ONE_KEY:
            return f"{MAX_OF_ONE_KEY} pages watch this server with this key already"
        return None

    async def _count(self, frames: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        if self._why_full(caller):  # of many that came at once, the last ones end here
            return
        tenant = caller.tenant
        self._open[tenant] += 1
        try:
            async for frame in frames:
                yield frame
        finally:
            self._open[tenant] -= 1


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


def _shown(requests: list[RequestState], visible: Visibility | None) -> list[RequestState]:
    return [r for r in requests if visible is None or visible(r.request_id)]


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
