"""The inspector over a recording: the same page and routes without an engine, on loopback."""

from __future__ import annotations

import re
import socket

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from twostroke.http.closing_server import ClosingServer
from twostroke.http.foreign_hosts import HostCheck
from twostroke.inspector.compare.routes import compare_router
from twostroke.inspector.fleet.recorded_fleet import RecordedFleet
from twostroke.inspector.fleet.routes import fleet_router
from twostroke.inspector.front_door import PAGE, FrontDoor
from twostroke.inspector.model.routes import ModelRoutes
from twostroke.inspector.overview_routes import overview_router
from twostroke.inspector.request_routes import request_router
from twostroke.inspector.routes import InspectRoutes
from twostroke.inspector.simulations.routes import simulate_router
from twostroke.inspector.source import RequestSource
from twostroke.inspector.static_files import page_routes
from twostroke.inspector.why.routes import why_router
from twostroke.questions.model_facts import ModelFacts
from twostroke.server.http.errors import error_response, install_error_handlers
from twostroke.server.http.lifecycle import base_url, own_names
from twostroke.server.options import ServerOptions
from twostroke.server.process import listen

_REPLICA = re.compile(r"(/replicas/(\d{1,5}))(/.*)?", re.ASCII)


def create_inspecting_app(
    source: RequestSource, *more: APIRouter, facts: ModelFacts | None = None
) -> FastAPI:
    """The page and its routes over one source, and what else it asks.

    Args:
        more: Routes beside those of a single engine.
        facts: The model whose steps these are, where somebody knows it.
    """

    async def find_facts() -> ModelFacts | None:
        return facts

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    install_error_handlers(app)
    app.add_middleware(FrontDoor, leads_to=PAGE)
    app.include_router(InspectRoutes(lambda: source).router())
    app.include_router(request_router(lambda: source))
    app.include_router(ModelRoutes(lambda: source, find_facts).router())
    app.include_router(why_router(lambda: source, find_facts))
    app.include_router(compare_router(lambda: source))
    app.include_router(overview_router(lambda: source))
    app.include_router(simulate_router())
    app.router.routes += page_routes()
    for router in more:
        app.include_router(router)
    return app


def fleet_app(fleet: RecordedFleet, *more: APIRouter, facts: ModelFacts | None = None) -> ASGIApp:
    """The inspector's page for every replica that took steps; ``/`` shows the first of them.

    Every replica has its page at ``/replicas/N/``.
    """
    apps: dict[int, FastAPI] = {}

    def app_of(number: int) -> FastAPI:
        if number not in apps:
            source = fleet.replicas[number]
            assert source is not None
            apps[number] = create_inspecting_app(
                source, fleet_router(fleet, number), *more, facts=facts
            )
        return apps[number]

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        number, match = fleet.first, _REPLICA.fullmatch(scope.get("path", ""))
        if match is not None:
            asked = int(match[2])
            if asked < len(fleet.replicas) and fleet.replicas[asked] is not None:
                number, scope = asked, {**scope, "root_path": match[1]}
        await app_of(number)(scope, receive, send)

    return application


def serving(app: ASGIApp, options: ServerOptions) -> tuple[uvicorn.Server, socket.socket, str]:
    """A server of an application with the page, not started; its socket, the page's address.

    Raises:
        ConfigError: The address cannot be bound.
    """
    listener = listen(options)
    config = uvicorn.Config(
        HostCheck(app, own_names(options), error_response),
        loop="uvloop",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
    )
    return ClosingServer(config), listener, f"{base_url(listener, options)}/inspect/"
