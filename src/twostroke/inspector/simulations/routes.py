"""``POST /v1/inspect/simulate`` and ``/v1/inspect/inside``, for pages that explain.

A small run of the simulator, and a look into the embedded model.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import caller_of
from twostroke.inspector.request_body import read_body
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.simulations.process import INSIDE, SimulationProcess
from twostroke.questions.inside_text import AskedText, read_asked_text
from twostroke.questions.small_run import AskedRun, read_question

MAX_BODY = 64 * 1024
MAX_WAITING = 8
MAX_OF_ONE_KEY = 6  # so that a key which asks too much leaves room for others and for the admin
MAX_KEPT = 64  # answers; equal questions have equal answers
MAX_KEPT_BYTES = 16 * 2**20  # most answers have some ten kilobytes, the largest have megabytes
MAX_TEXT_BODY = 4096
Asked = TypeVar("Asked", bound=msgspec.Struct)


class OneAtATime(Generic[Asked]):
    """Answers one question after the other, and keeps the latest answers.

    Args:
        answer: The answer to a question, as JSON.
    """

    def __init__(self, answer: Callable[[Asked], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._waiting: Counter[str | None] = Counter()  # by key
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0  # of the answers

    @functools.cached_property
    def _lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def answer(self, asked: Asked, key_name: str | None = None) -> bytes:
        """The answer as JSON.

        Args:
            key_name: Whose question it is; ``None``: an admin's, who may fill the queue.

        Raises:
            QueueFullError: Too many questions wait, or too many of this key's.
            InvalidRequestError, SimulationError: See ``SimulationProcess``.
        """
        key = msgspec.json.encode(asked)
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        if self._waiting.total() >= MAX_WAITING:
            raise QueueFullError(f"{MAX_WAITING} questions wait already", hint="try again soon")
        if key_name is not None and self._waiting[key_name] >= MAX_OF_ONE_KEY:
            raise QueueFullError(
                f"{MAX_OF_ONE_KEY} questions of this key wait already", hint="try again soon"
            )
        self._waiting[key_name] += 1
        try:
            async with self._lock:
                answer = self._answers.get(key)  # answered, perhaps, while this one waited
                if answer is None:
                    answer = await self._answer(asked)
                    self._keep(key, answer)
        finally:
            self._waiting[key_name] -= 1
        return answer

    def _keep(self, key: bytes, answer: bytes) -> None:
        self._answers[key] = answer
        self._num_bytes += len(answer)
        while len(self._answers) > MAX_KEPT or self._num_bytes > MAX_KEPT_BYTES:
            _, oldest = self._answers.popitem(last=False)
            self._num_bytes -= len(oldest)


def simulate_router() -> APIRouter:
    """The routes. They show nothing of the server's own requests, so any key may ask."""
    simulator, inside = SimulationProcess(), SimulationProcess(module=INSIDE)
    simulations = OneAtATime[AskedRun](simulator.run)
    looks = OneAtATime[AskedText](inside.run)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        for process in (simulator, inside):
            await asyncio.to_thread(process.close)

    router = APIRouter(include_in_schema=False, lifespan=lifespan)

    @router.post("/v1/inspect/simulate", response_class=Response)
    async def simulate_run(request: Request) -> Response:
        """Bounded requests on a bounded choice of models and devices."""
        asked = read_question(await read_body(request, MAX_BODY))
        return _json(await simulations.answer(asked, key_name(request)))

    @router.post("/v1/inspect/inside", response_class=Response)
    async def look_inside(request: Request) -> Response:
        """What the embedded model does with a short text: its attention, layer by layer."""
        asked = read_asked_text(await read_body(request, MAX_TEXT_BODY))
        return _json(await looks.answer(asked, key_name(request)))

    return router


def key_name(request: Request) -> str | None:
    """Whose question it is; ``None``: an admin's."""
    caller = caller_of(request.scope)
    return None if caller.admin else caller.tenant


def _json(answer: bytes) -> Response:
    return Response(answer, headers=HEADERS, media_type="application/json")
