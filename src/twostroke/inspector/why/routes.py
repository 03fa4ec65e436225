"""``/v1/inspect/waits`` and ``/v1/inspect/bound``: why, in seconds and in shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from math import inf, isfinite
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
from twostroke.inspector.source import FrameLimits, RequestSource
from twostroke.inspector.why.bound import Bound, bound_of
from twostroke.inspector.why.room import DraftsPay, RoomForMore, drafts_pay, room_of
from twostroke.inspector.why.waits import MinuteWaits, RequestWaits
from twostroke.observability.frames.columns import MAX_SHARES, StepFrame
from twostroke.questions.model_facts import Ceilings, ModelFacts

MAX_LOOKED_AT = 512  # steps; each costs some 50 microseconds where a model is known


class ShownBound(msgspec.Struct):
    """The answer of ``/v1/inspect/bound``.

    Attributes:
        room: ``None`` where no step only decoded.
        drafts: About the latest steps, however long ago, if these verified guesses or none decoded
            alone; else ``None``.
        device: Whose ceilings these are; empty where there are none.
        earlier: Whether ``room`` is of steps before these, none of which decoded alone.
    """

    bound: Bound
    room: RoomForMore | None = None
    drafts: DraftsPay | None = None
    device: str = ""
    earlier: bool = False


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
        source = find_source()
        described = source.describe()
        last = described.last_step if to is None else to
        frame = await _frame(source, last, seconds)
        end = described.now if to is None else _end_of(frame, described.now)
        begin = max(end - seconds, frame.steps.time[0] if frame.steps.time else end - seconds)
        facts = await _known(find_facts)
        costs = None if facts is None else facts.costs
        ceilings = None if facts is None else find_measured() or facts.calibrated
        ceilings = ceilings or (None if costs is None else costs.ceilings)
        since = None if to is not None or find_client is None else find_client().status.busy_since
        bound = await asyncio.to_thread(
            partial(bound_of, running_since=since), frame, begin, end, costs, ceilings
        )
        if to is not None and not frame.steps.step:
            bound.kind, bound.within, bound.why = "unknown", "unknown", "gone"
        shown = ShownBound(bound, device="" if ceilings is None else ceilings.device)
        places = described.configuration.get("max_num_seqs")

        rooms = partial(
            room_of,
            costs=costs,
            ceilings=ceilings,
            max_num_seqs=places if isinstance(places, int) else None,
            tpot=tpot,
        )
        shown.room = await asyncio.to_thread(rooms, frame)
        has_drafts = any(frame.shares.drafts)
        if frame.steps.step and (shown.room is None or has_drafts):
            # Such as a single prompt after a long rest: what decoded before it tells more. And few
            # guesses say little.
            longer = await _frame(source, last, inf)
            shown.drafts = await asyncio.to_thread(drafts_pay, longer, costs)
            if shown.room is None:
                shown.earlier = True
                shown.room = await asyncio.to_thread(rooms, longer)
        return _json(shown)


async def _frame(source: RequestSource, last: int, seconds: float) -> StepFrame:
    """The steps before the end of one, unmerged; the last ones where there are many."""
    limits = FrameLimits(MAX_LOOKED_AT, MAX_SHARES, "last")
    one = await source.frame(last, last + 1, None, limits)
    if not one.steps.step:
        return one
    first = source.step_at(_end_of(one, 0.0) - seconds)
    return await source.frame(max(first, last + 1 - MAX_LOOKED_AT), last + 1, None, limits)


def _end_of(frame: StepFrame, otherwise: float) -> float:
    steps = frame.steps
    return steps.time[-1] + steps.duration[-1] if steps.time else otherwise


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
