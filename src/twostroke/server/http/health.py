"""``/health``, ``/metrics``, ``/load``, ``/v1/targets``, ``/version``: for balancers, scripts."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from twostroke.engine.clients.exposition import merge_expositions
from twostroke.engine.messages import EngineRecords
from twostroke.gateway.caller import caller_of
from twostroke.observability.targets.watch import TargetReport
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.json_response import encode_json, json_response
from twostroke.server.state.server_state import ServerState
from twostroke.server.version import package_version


class Health(Struct):
    """``ok``, ``loading``, ``draining`` or ``unhealthy``; where it is not ok, why."""

    status: str
    reason: str | UnsetType = UNSET


class Load(Struct):
    """Requests that run or wait, under vLLM's name; where there are keys, those of the caller's."""

    server_load: int


class TargetList(Struct):
    """The targets that the caller may see."""

    data: list[TargetReport]
    object: str = "list"


class Version(Struct):
    version: str


def health_router(state: ServerState) -> APIRouter:
    """Health, metrics and version of one server."""
    router = APIRouter(tags=["health"])
    welcome = answer_responses(Health, "New work is welcome.")
    unwell = answer_responses(Health, "Loading, draining or unhealthy.")[200]
    exposition: Responses = {
        200: {
            "description": "Prometheus exposition.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        503: ERROR_RESPONSES[503],
    }
    unloaded: Responses = {503: ERROR_RESPONSES[503]}
    refusals: Responses = {status: ERROR_RESPONSES[status] for status in (401, 403)}
    versioned = answer_responses(Version, "The version of the package.") | refusals

    @router.head("/health", include_in_schema=False)
    @router.get("/health", response_class=Response, responses=welcome | {503: unwell})
    async def health() -> Response:
        """200 while new work is welcome and the engine makes progress."""
        status, reason = state.status()
        if reason is None:
            return json_response(Health(status))
        return Response(
            encode_json(Health(status, reason)), 503, {"retry-after": "2"}, "application/json"
        )

    @router.get("/metrics", response_class=Response, responses=exposition | refusals)
    async def metrics(request: Request) -> Response:
        """Prometheus exposition, with vLLM's names; where there are keys, what this one may see."""
        records = await _records(state)
        text = caller_of(request.scope).metrics(records)
        return Response(text, headers={"content-type": records.content_type})

    loaded = answer_responses(Load, "Requests that run or wait.") | refusals

    @router.get("/load", response_class=Response, responses=loaded)
    async def load(request: Request) -> Response:
        """How much the server has to do; for a key, of its own."""
        return json_response(Load(caller_of(request.scope).load(state.num_unfinished())))

    watched = answer_responses(TargetList, "Targets and how they stand.") | refusals

    @router.get("/v1/targets", response_class=Response, responses=watched | unloaded)
    async def targets(request: Request) -> Response:
        """What good is, how it stands, and which requests missed most."""
        records = await _records(state)
        return json_response(TargetList(caller_of(request.scope).targets(records)))

    @router.get("/version", response_class=Response, responses=versioned)
    async def version() -> Response:
        """The server's version."""
        return json_response(Version(package_version()))

    return router


async def _records(state: ServerState) -> EngineRecords:
    """Ask all engines; their series differ in the model's name."""
    models = state.models()
    records = await asyncio.gather(*(model.client.records() for model in models))
    if len(records) == 1:
        return records[0]
    targets = [
        replace(report, model=model.name)
        for model, each in zip(models, records, strict=True)
        for report in each.targets
    ]
    metrics = merge_expositions(each.metrics for each in records)
    return EngineRecords(metrics, records[0].content_type, targets)
