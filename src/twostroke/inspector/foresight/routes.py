"""``POST /v1/inspect/plan`` and ``/v1/inspect/doctor``: the commands of these names, for pages.

Both run in processes of low priority, see ``SimulationProcess``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from twostroke.core.errors import AdminKeyNeededError, InvalidRequestError, QueueFullError
from twostroke.gateway.caller import caller_of
from twostroke.inspector.request_body import read_body
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.simulations.process import SimulationProcess
from twostroke.inspector.simulations.routes import OneAtATime, key_name
from twostroke.inspector.source import FrameLimits, StepSource
from twostroke.observability.frames.columns import MAX_SHARES, MAX_STEPS
from twostroke.questions.foresight import AskedDiagnosis, AskedPlan, AskedTargets, read_asked

# Names and no imports: both stand above the inspector.
PLANNER = "twostroke.planner.answer_plan"
DOCTOR = "twostroke.doctor.answer_frame"
MAX_SECONDS = 90.0  # a diagnosis replays the traffic many times
MAX_BODY = 8192
MAX_LOOKS = 2  # diagnoses that run and wait


def foresight_router(find_source: Callable[[], StepSource]) -> APIRouter:
    """The routes.

    Args:
        find_source: Raises ``ModelLoadingError`` until there is one.
    """
    planner = SimulationProcess(module=PLANNER)
    doctor = SimulationProcess(MAX_SECONDS, DOCTOR)
    plans = OneAtATime[AskedPlan](planner.run)
    looks = asyncio.Semaphore(MAX_LOOKS)

    @contextlib.asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        for process in (planner, doctor):
            await asyncio.to_thread(process.close)

    router = APIRouter(include_in_schema=False, lifespan=lifespan)

    @router.post("/v1/inspect/plan", response_class=Response)
    async def plan(request: Request) -> Response:
        """What to buy for a load, by formulas; it shows nothing of this server."""
        asked = read_asked(await read_body(request, MAX_BODY), AskedPlan)
        return _json(await plans.answer(asked, key_name(request)))

    @router.post("/v1/inspect/doctor", response_class=Response)
    async def diagnose(request: Request) -> Response:
        """What binds the latest steps, and which flag helps, proven by replaying them."""
        if not caller_of(request.scope).admin:
            raise AdminKeyNeededError(
                "a diagnosis replays the requests of all keys: it needs an admin key"
            )
        targets = read_asked(await read_body(request, MAX_BODY), AskedTargets).targets
        if looks.locked():
            raise QueueFullError("other diagnoses run and wait", hint="try again in a while")
        async with looks:
            asked = await _latest_steps(find_source(), targets)
            return _json(await doctor.run(asked))

    return router


async def _latest_steps(source: StepSource, targets: list[str]) -> AskedDiagnosis:
    described = source.describe()
    if described.last_step < 0:
        raise InvalidRequestError("no step has run yet", hint="ask again after some requests")
    first = max(described.first_step, described.last_step + 1 - MAX_STEPS)
    limits = FrameLimits(MAX_STEPS, MAX_SHARES, "last")
    frame = await source.frame(first, described.last_step + 1, None, limits)
    return AskedDiagnosis(
        described.name, frame, described.num_blocks, described.configuration, targets
    )


def _json(answer: bytes) -> Response:
    return Response(answer, headers=HEADERS, media_type="application/json")
