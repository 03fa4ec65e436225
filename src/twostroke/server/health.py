"""``GET /health``, ``/metrics`` and ``/version``: what machines ask about the server."""

from __future__ import annotations

from fastapi import APIRouter
from msgspec import UNSET, Struct, UnsetType
from starlette.responses import Response

from twostroke.server.openapi import ERROR_RESPONSES, Responses, answers
from twostroke.server.serving import Serving
from twostroke.server.sse import encode
from twostroke.server.version import package_version


class Health(Struct):
    """``ok``, ``loading``, ``draining`` or ``unhealthy``; where it is not ok, why."""

    status: str
    reason: str | UnsetType = UNSET


class Version(Struct):
    version: str


def health_router(serving: Serving) -> APIRouter:
    """The routes for load balancers, dashboards and scripts."""
    router = APIRouter(tags=["health"])
    welcome = answers(Health, "New work is welcome.")
    unwell = answers(Health, "Loading, draining or unhealthy.")[200]
    exposition: Responses = {
        200: {
            "description": "Prometheus exposition.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        503: ERROR_RESPONSES[503],
    }
    refusals: Responses = {status: ERROR_RESPONSES[status] for status in (401, 403)}
    versioned = answers(Version, "The version of the package.") | refusals

    @router.head("/health", include_in_schema=False)
    @router.get("/health", response_class=Response, responses=welcome | {503: unwell})
    async def health() -> Response:
        """200 while new work is welcome and the engine makes progress."""
        status, reason = serving.status()
        if reason is None:
            return Response(encode(Health(status)), media_type="application/json")
        return Response(
            encode(Health(status, reason)), 503, {"retry-after": "2"}, "application/json"
        )

    @router.get("/metrics", response_class=Response, responses=exposition | refusals)
    async def metrics() -> Response:
        """Prometheus exposition, with vLLM's names."""
        text, content_type = serving.loaded().client.render_metrics()
        return Response(text, headers={"content-type": content_type})

    @router.get("/version", response_class=Response, responses=versioned)
    async def version() -> Response:
        """The server's version."""
        return Response(encode(Version(package_version())), media_type="application/json")

    return router
