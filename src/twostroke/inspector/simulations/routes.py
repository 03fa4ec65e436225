"""``POST /v1/inspect/simulate``: a small run of the simulator, for pages that explain."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import QueueFullError
from twostroke.gateway.caller import caller_of
from twostroke.inspector.request_body import read_body
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.simulations.process import SimulationProcess
from twostroke.questions.small_run import AskedRun, read_question

MAX_BODY = 64 * 1024
MAX_WAITING = 8
MAX_OF_ONE_KEY = 6  # so that a key which asks too much leaves room for others and for the admin
MAX_KEPT = 64  # answers; equal questions have equal answers
MAX_KEPT_BYTES = 16 * 2**20  # most answers have some ten kilobytes, the largest have megabytes
Simulate = Callable[[AskedRun], Awaitable[bytes]]


class OneAtATime:
    """Simulates one question after the other, and keeps the latest answers.

    Args:
        simulate: The answer to a question, as JSON.
    """

    def __init__(self, simulate: Simulate) -> None:
        self._simulate = simulate
        self._waiting: Counter[str | None] = Counter()  # by key
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._num_bytes = 0  # of the answers

    @functools.cached_property
    def _lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def answer(self, asked: AskedRun, key_name: str | None = None) -> bytes:
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
            raise QueueFullError(f"{MAX_WAITING} simulations wait already", hint="try again soon")
        if key_name is not None and self._waiting[key_name] >= MAX_OF_ONE_KEY:
            raise QueueFullError(
                f"{MAX_OF_ONE_KEY} simulations of this key wait already", hint="try again soon"
            )
        self._waiting[key_name] += 1
        try:
            async with self._lock:
                answer = self._answers.get(key)  # simulated, perhaps, while this one waited
                if answer is None:
                    answer = await self._simulate(asked)
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
    """The route. It shows nothing of the server's own requests, so any key may ask."""
    process = SimulationProcess()
    simulations = OneAtATime(process.run)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(process.close)

    router = APIRouter(include_in_schema=False, lifespan=lifespan)

    @router.post("/v1/inspect/simulate", response_class=Response)
    async def simulate_run(request: Request) -> Response:
        """Bounded requests on a bounded choice of models and devices."""
        asked = read_question(await read_body(request, MAX_BODY))
        caller = caller_of(request.scope)
        answer = await simulations.answer(asked, None if caller.admin else caller.tenant)
        return Response(answer, headers=HEADERS, media_type="application/json")

    return router
