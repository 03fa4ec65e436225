"""``/v1/inspect/model`` and ``/v1/inspect/kv-models``: what the page Model reads, and the sliders.

Where nobody said which model ran (a recording), the answers say why and what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
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
from twostroke.inspector.model.measuring import Meter, ModelMeasurement, Price, price_of
from twostroke.inspector.model.points import MAX_POINTS, paths, points_of
from twostroke.inspector.model.tower import Tower, draw_tower
from twostroke.inspector.routes import HEADERS
from twostroke.inspector.source import FrameLimits, StepSource
from twostroke.model_spec.kv_terms import KVTerms, kv_terms
from twostroke.model_spec.public_models import find_model, public_names
from twostroke.observability.frames.columns import MAX_SHARES
from twostroke.questions.model_facts import Ceilings, ModelFacts

MAX_CONTEXT, MAX_BATCH = 2**24, 4096
UNKNOWN = "Nobody said which model ran here, and on which device."
HINT = "say it when you open a recording: twostroke inspect FILE --model NAME --gpu NAME"
STEP = Query(ge=-1, le=2**62)


class ShownModel(msgspec.Struct):
    """The answer of ``/v1/inspect/model``.

    Attributes:
        why: Why the rest is missing; empty where it is there.
        measured: Whether steps come from a device; else they are the cost model's own.
        ceilings: By the device's sheet; ``None`` where there is none.
        calibrated: By a calibration, if one was given.
        price: What a measurement would cost; ``None`` where none can be made.
        measurement: The latest one.
    """

    why: str = ""
    tower: Tower | None = None
    measured: bool = True
    ceilings: Ceilings | None = None
    calibrated: Ceilings | None = None
    price: Price | None = None
    measurement: ModelMeasurement | None = None
    notes: list[str] = []


class ShownTerms(msgspec.Struct):
    """The answer of ``/v1/inspect/kv-models``.

    Attributes:
        models: The loaded one first, if it is known; then public ones by name.
        loaded: Whether the first is the loaded one.
        kv_cache: The format in which the loaded one caches; empty if it is not known.
    """

    models: list[KVTerms]
    loaded: bool
    kv_cache: str


class ModelRoutes:
    """The routes.

    Args:
        find_source: See ``InspectRoutes``.
        find_facts: The model that is shown; ``None`` where nobody knows it.
        find_client: The engine that can be measured, if there is one; raises until it is loaded.
    """

    def __init__(
        self,
        find_source: Callable[[], StepSource],
        find_facts: FindFacts,
        find_client: Callable[[], EngineClient] | None = None,
    ) -> None:
        self._find_source = find_source
        self._find_facts = find_facts
        self._find_client = find_client
        self._meter = Meter()

    def router(self) -> APIRouter:
        router = APIRouter(include_in_schema=False)
        router.add_api_route(
            "/v1/inspect/model", self.model, methods=["GET"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/model/paths", self.model_paths, methods=["GET"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/model/steps", self.model_steps, methods=["GET"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/model/measure", self.measure, methods=["POST"], response_class=Response
        )
        router.add_api_route(
            "/v1/inspect/kv-models", self.kv_models, methods=["GET"], response_class=Response
        )
        return router

    def measured(self) -> Ceilings | None:
        """What the latest measurement found of this machine; ``None`` until there is one."""
        return None if self._meter.latest is None else self._meter.latest.ceilings

    async def model(self, request: Request) -> Response:
        """Layers, ceilings, and what a measurement costs or has found."""
        try:
            facts = await self._find_facts()
        except (ConfigError, ModelLoadError) as error:  # an encoder, or a file that is gone
            return _json(ShownModel(f"This model cannot be described: {error}"))
        if facts is None:
            return _json(ShownModel(f"{UNKNOWN} To see it, {HINT}"))
        shown = ShownModel(
            tower=draw_tower(facts.name, facts.spec, facts.weights, facts.kv_cache, facts.ranks),
            measured=facts.measured,
            ceilings=facts.costs.ceilings,
            calibrated=facts.calibrated,
            notes=list(facts.notes),
        )
        if self._find_client is not None and facts.make_probe is not None:
            client = self._find_client()
            if caller_of(request.scope).admin and client.info.generates:
                shown.price, shown.measurement = price_of(client, facts), self._meter.latest
        return _json(shown)

    async def model_paths(
        self,
        context: Annotated[int, Query(ge=1, le=MAX_CONTEXT)],
        prompt: Annotated[int, Query(ge=1, le=MAX_CONTEXT)],
        batch: Annotated[int, Query(ge=1, le=MAX_BATCH)] = 256,
    ) -> Response:
        """What the cost model says: decode of up to ``batch`` requests, prefill of a ``prompt``."""
        facts = await _known(self._find_facts)
        return _json(await asyncio.to_thread(paths, facts.costs, context, prompt, batch))

    async def model_steps(
        self,
        request: Request,
        to: Annotated[int | None, STEP] = None,
        since: Annotated[int, STEP] = -1,
        count: Annotated[int, Query(ge=1, le=MAX_POINTS)] = MAX_POINTS,
    ) -> Response:
        """The latest ``count`` steps after ``since`` and up to ``to``, as points."""
        _only_for_admins(request)
        facts, source = await _known(self._find_facts), self._find_source()
        end = source.describe().last_step if to is None else to
        frame = await source.frame(
            max(since + 1, end + 1 - count),
            end + 1,
            None,
            FrameLimits(count, MAX_SHARES, "last"),
        )
        return _json(await asyncio.to_thread(points_of, frame, facts.costs))

    async def measure(
        self, request: Request, content_type: Annotated[str, Header()] = ""
    ) -> Response:
        """Probe the machine and run the batches; see ``inspector.model.measuring``."""
        _only_for_admins(request)
        # A script of another site cannot send this type without being asked first.
        if content_type.partition(";")[0].strip() != "application/json":
            raise InvalidRequestError(
                "a measurement takes content-type: application/json", param="content-type"
            )
        facts = await _known(self._find_facts)
        if self._find_client is None:
            raise InvalidRequestError("there is no engine here whose steps could be measured")
        return _json(await self._meter.measure(self._find_client(), facts))

    async def kv_models(self) -> Response:
        """What the size of a KV cache depends on, for this model and public ones."""
        try:
            facts = await self._find_facts()
        except (ConfigError, ModelLoadError):
            facts = None
        models = [*await asyncio.to_thread(_public_terms)]
        if facts is not None:
            models = [model for model in models if model.name != facts.name]
            models.insert(0, kv_terms(facts.name, facts.spec, facts.weights))
        shown = ShownTerms(models, facts is not None, "" if facts is None else facts.kv_cache)
        return _json(shown)


@cache
def _public_terms() -> tuple[KVTerms, ...]:
    return tuple(kv_terms(name, find_model(name)) for name in public_names())


async def _known(find_facts: FindFacts) -> ModelFacts:
    try:
        facts = await find_facts()
    except (ConfigError, ModelLoadError) as error:
        raise InvalidRequestError(str(error), hint=error.hint) from error
    if facts is None:
        raise InvalidRequestError(UNKNOWN, hint=HINT)
    return facts


def _only_for_admins(request: Request) -> None:
    if not caller_of(request.scope).admin:
        raise AdminKeyNeededError(
            "steps of the whole engine concern all tenants, so they need an admin key",
            hint="make one with twostroke key NAME --admin",
        )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), headers=HEADERS, media_type="application/json")
