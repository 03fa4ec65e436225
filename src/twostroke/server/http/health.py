"""``GET /health``, ``/metrics`` and ``/version``: the routes for load balancers and scripts."""

from __future__ import annotations

from fastapi import APIRouter
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.json_response import encode_json, json_response
from twostroke.server.state.server_state import ServerState
from twostroke.server.version import package_version


class Health(Struct):
    """``ok``, ``loading``, ``draining`` or ``unhealthy``; where it is not ok, why."""

    status: str
    reason: str | UnsetType = UNSET


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
    async def metrics() -> Response:
        """Prometheus exposition, with vLLM's names."""
        text, content_type = state.model().client.render_metrics()
        return Response(text, headers={"content-type": content_type})

    @router.get("/version", response_class=Response, responses=versioned)
    async def version() -> Response:
        """The server's version."""
        return json_response(Version(package_version()))

    return router
