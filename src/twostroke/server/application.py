"""The HTTP application: the routes of all APIs over one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.gateway import Gateway, GatewayMiddleware
from twostroke.server.http.api_document import LIMIT_HEADERS, document_api
from twostroke.server.http.body_size import BodySizeLimit
from twostroke.server.http.errors import error_response, install_error_handlers
from twostroke.server.http.health import Health, Version, health_router
from twostroke.server.http.request_id import RequestIds
from twostroke.server.openai.chat import chat_router
from twostroke.server.openai.chat_answer import ChatChunk, ChatCompletion
from twostroke.server.openai.completion_answer import Completion
from twostroke.server.openai.completions import completions_router
from twostroke.server.openai.models import ModelCard, ModelList, models_router
from twostroke.server.openai.tokenization import Detokenized, Tokenized, tokenization_router
from twostroke.server.options import ServerOptions
from twostroke.server.state.server_state import OwnedEngine, ServerState
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
        gateway: Keys and limits; by default there are none.
    """
    options = options or ServerOptions()
    return create_app_for(ServerState(source, options), options, gateway)


def create_app_for(
    state: ServerState, options: ServerOptions, gateway: Gateway | None = None
) -> FastAPI:
    """The same, for a caller that watches and drains ``state`` itself."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(state.load())
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
    app.add_middleware(BodySizeLimit, limit=options.max_body_size)
    if gateway is not None and gateway.needed:
        # Added after it, so it comes before: without a valid key no body is read.
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
        app.include_router(router(state))
    document_api(app, ANSWERS, gateway)
    return app
