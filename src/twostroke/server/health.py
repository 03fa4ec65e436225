"""``GET /health``, ``/metrics`` and ``/version``: what machines ask about the server."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from twostroke.server.errors import ERROR_RESPONSES
from twostroke.server.serving import Serving
from twostroke.server.version import package_version


def health_router(serving: Serving) -> APIRouter:
    """The routes for load balancers, dashboards and scripts."""
    router = APIRouter(tags=["health"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health", responses={503: {"description": "Loading, draining or unhealthy; `reason` says why."}})
    async def health() -> Response:
        """200 while new work is welcome and the engine makes progress."""
        status, reason = serving.status()
        if reason is None:
            return JSONResponse({"status": status})
        return JSONResponse({"status": status, "reason": reason}, 503, {"retry-after": "2"})

    @router.get("/metrics", responses={503: ERROR_RESPONSES[503]})
    async def metrics() -> Response:
        """Prometheus exposition, with vLLM's names."""
        text, content_type = serving.loaded().client.render_metrics()
        return Response(text, headers={"content-type": content_type})

    @router.get("/version")
    async def version() -> Response:
        """The server's version."""
        return JSONResponse({"version": package_version()})

    return router
