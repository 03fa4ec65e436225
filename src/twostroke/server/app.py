"""The HTTP application: routes over one engine, with nothing kept in modules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.gateway import Gateway, GatewayMiddleware
from twostroke.server.chat import chat_router
from twostroke.server.completions import completions_router
from twostroke.server.errors import BodyTooLargeError, error_response, install_error_handlers
from twostroke.server.health import Health, Version, health_router
from twostroke.server.models import ModelCard, ModelList, models_router
from twostroke.server.openapi import LIMIT_HEADERS, document_api
from twostroke.server.options import ServerOptions
from twostroke.server.request_id import RequestIds
from twostroke.server.responses import ChatChunk, ChatCompletion, Completion
from twostroke.server.serving import OwnedEngine, Serving
from twostroke.server.tokenization import Detokenized, Tokenized, tokenization_router
from twostroke.server.version import package_version

ANSWERS = (
    ChatCompletion,
    ChatChunk,
    Completion,
    ModelList,
    ModelCard,
    Tokenized,
    Detokenized,
    Health,
    Version,
)
# What scripts of web pages may read of an answer's head.
EXPOSED_HEADERS = ("x-request-id", "retry-after", *LIMIT_HEADERS)
DESCRIPTION = (
    "OpenAI's API over the twostroke engine. Every accepted field works; any other is refused by"
    " name."
)


def create_app(
    source: EngineClient | Future[OwnedEngine],
    options: ServerOptions | None = None,
    gateway: Gateway | None = None,
) -> FastAPI:
    """An application that serves one engine.

    Args:
        source: The engine; or the future of one that is still loading, until when ``/health``
            answers 503.
        options: Names of the model, limits and time-outs.
        gateway: Keys and limits; by default everybody is let in.
    """
    options = options or ServerOptions()
    return create_app_for(Serving(source, options), options, gateway)


def create_app_for(
    serving: Serving, options: ServerOptions, gateway: Gateway | None = None
) -> FastAPI:
    """The same, for a caller that watches and drains ``serving`` itself."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(serving.load())
        yield
        loading.cancel()
        if gateway is not None:
            await gateway.close()

    app = FastAPI(
        title="twostroke",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,  # a path that is not in the document is a 404
    )
    install_error_handlers(app)
    app.add_middleware(BodyLimit, limit=options.max_body_size)
    if gateway is not None and gateway.needed:
        # Added after it, so it comes before: who may not ask has nothing read.
        app.add_middleware(GatewayMiddleware, gateway=gateway, refuse=error_response)
    if options.allowed_origins:
        # Before the keys: a browser asks without one whether it may send one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(RequestIds)
    for router in (
        chat_router,
        completions_router,
        tokenization_router,
        models_router,
        health_router,
    ):
        app.include_router(router(serving))
    document_api(app, ANSWERS, gateway)
    return app


class BodyLimit:
    """Refuses bodies above ``limit`` bytes, announced or not, before they are held in memory.

    Plain ASGI: Starlette's ``BaseHTTPMiddleware`` would hide that a client has left.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next(
            (value for name, value in scope["headers"] if name == b"content-length"), b"0"
        )
        if announced.isdigit() and int(announced) > self._limit:
            await error_response(self._error())(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                # FastAPI turns any other exception of a body that it reads into a 400.
                raise HTTPException(413) from self._error()
            return message

        await self._app(scope, counted, send)

    def _error(self) -> BodyTooLargeError:
        return BodyTooLargeError(
            f"the body exceeds {self._limit} bytes",
            hint="send less, or start the server with a larger --max-body-size",
        )
