"""The engines of a live server, as the page of a fleet shows them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Annotated

import msgspec
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import AdminKeyNeededError, InvalidRequestError
from twostroke.engine.clients.engine_view import EnginePart, EngineView
from twostroke.gateway.caller import caller_of
from twostroke.inspector.fleet.occupancy import Occupancy, imbalance_of
from twostroke.inspector.fleet.recorded_fleet import Strip, strip_of
from twostroke.inspector.routes import HEADERS
from twostroke.observability.events import StepEvent
from twostroke.observability.frames.columns import StepFrame, encode_steps, those_that_fit
from twostroke.observability.tracing.call_book import CallBook

WINDOW_SECONDS = 120.0
MAX_STEPS = 16_384  # of an engine, after which what is left of them is read anew
MAX_COLUMNS, MAX_SHARES = 1024, 32_768


class LiveEngines(msgspec.Struct):
    """The answer of ``/v1/inspect/engines``.

    Attributes:
        engines: How each is at the moment. The page shows the steps of the first.
        replicas: How each was from ``begin`` to ``end``, in the same order.
        imbalance: What ``Strips`` has under that name.
        routed: Nothing: when requests were routed is not kept.
    """

    engines: list[EngineView]
    begin: float
    end: float
    replicas: list[Strip]
    imbalance: list[float]
    routed: dict[str, list[int]]


class _History:
    """What an engine has told of its steps while a page was open, and some time before.

    Attributes:
        begin: When the first of them began; ``None``: there is none.
        is_whole: Whether there was none before it.
    """

    def __init__(self) -> None:
        self._occupancy = Occupancy()
        self._steps: list[int] = []
        self.begin: float | None = None
        self.is_whole = True

    def read(self, events: Callable[[int], list[StepEvent]]) -> Occupancy:
        new = events(self._steps[-1] if self._steps else -1)
        if len(self._steps) + len(new) > MAX_STEPS:
            self._occupancy, self._steps = Occupancy(), []
            new = events(-1)
        for event in new:
            if not self._steps:
                self.begin, self.is_whole = event.time, event.step == 0
            self._occupancy.add(event)
            self._steps.append(event.step)
        return self._occupancy

    def step_of_row(self, row: int) -> int:
        return self._steps[row] if self._steps else 0


class LiveFleet:
    """Reads engines when it is asked: no page, no cost.

    Args:
        parts: All engines, those of the main model first.
        clock: That of the engines.
    """

    def __init__(
        self, parts: Callable[[], Sequence[EnginePart]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._parts, self._clock = parts, clock
        self._histories: dict[tuple[str, int], _History] = {}
        self._reading = asyncio.Lock()

    async def show(self, columns: int) -> LiveEngines:
        """All engines, and the last two minutes, as far as all of them still know them."""
        async with self._reading:
            parts = self._parts()
            return await asyncio.to_thread(self._read, parts, columns)

    def _read(self, parts: Sequence[EnginePart], columns: int) -> LiveEngines:
        former, end = self._histories, self._clock()
        keys = [(part.view.model, part.view.number) for part in parts]
        self._histories = {key: former.get(key) or _History() for key in keys}
        histories = [self._histories[key] for key in keys]
        for part, history in zip(parts, histories, strict=True):
            history.read(part.events)
        begin = max(end - WINDOW_SECONDS, _first_of_all(histories, end - 1.0))
        levels = [each.read(lambda since: []).levels(begin, end, columns) for each in histories]
        return LiveEngines(
            [part.view for part in parts],
            begin,
            end,
            [
                strip_of(level, None if number else histories[0].step_of_row)
                for number, level in enumerate(levels)
            ],
            imbalance_of(levels).round(3).tolist(),
            {},
        )

    async def frame(self, model: str, number: int, begin: int, max_steps: int) -> StepFrame:
        """Steps of one engine from ``begin`` on, as many as fit.

        Raises:
            InvalidRequestError: There is no such engine.
        """
        views = {(part.view.model, part.view.number): part for part in self._parts()}
        if (part := views.get((model, number))) is None:
            hint = "/v1/inspect/engines has those that there are"
            raise InvalidRequestError("there is no such engine", param="number", hint=hint)
        events = part.events(begin - 1)

        def make() -> StepFrame:
            kept = those_that_fit(events, max_steps, MAX_SHARES)
            return encode_steps(kept, None, max_steps=max_steps, max_shares=MAX_SHARES)

        return await asyncio.to_thread(make)


def _first_of_all(histories: Sequence[_History], default: float) -> float:
    """From when on all of them are known."""
    begins = [each.begin for each in histories if each.begin is not None]
    late = [each.begin for each in histories if each.begin is not None and not each.is_whole]
    return max(late, default=min(begins, default=default))


def live_fleet_router(fleet: LiveFleet, book: CallBook) -> APIRouter:
    """``/v1/inspect/engines``, and what the doctor asks beside it.

    Args:
        book: Knows how calls ended.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/v1/inspect/engines", response_class=Response)
    async def engines(
        request: Request, columns: Annotated[int, Query(ge=1, le=MAX_COLUMNS)] = 160
    ) -> Response:
        """Each engine, and how full it was."""
        check_admin(request)
        return _json(await fleet.show(columns))

    @router.get("/v1/inspect/engines/steps", response_class=Response)
    async def steps(
        request: Request,
        model: str,
        number: Annotated[int, Query(ge=-(2**31), lt=2**31)],
        begin: Annotated[int, Query(alias="from", ge=0, le=2**62)] = 0,
        max_steps: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 2048,
    ) -> Response:
        """The steps of one engine, in pages."""
        check_admin(request)
        return _json(await fleet.frame(model, number, begin, max_steps))

    @router.get("/v1/inspect/calls", response_class=Response)
    async def calls(request: Request, since: float = -inf) -> Response:
        """How calls ended since a time on the engines' clock, as far as that is kept."""
        check_admin(request)
        return _json(book.ended_since(since))

    return router


def check_admin(request: Request) -> None:
    """Raise AdminKeyNeededError unless the caller may see what all keys do."""
    if not caller_of(request.scope).admin:
        raise AdminKeyNeededError("the engines work for all keys: this needs an admin key")


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
