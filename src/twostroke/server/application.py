"""The HTTP application: the routes of all APIs over one engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from fastapi import FastAPI
from msgspec import Struct
from starlette.middleware.cors import CORSMiddleware

from twostroke.engine.clients.base import EngineClient
from twostroke.engine.clients.loaded_model import LoadedModel
from twostroke.gateway.caller import caller_of
from twostroke.gateway.feeds import Feeds
from twostroke.gateway.gateway import Gateway, GatewayMiddleware
from twostroke.gateway.reads import ReadLimits
from twostroke.http.body_size import BodyLimit, BodySizeLimit
from twostroke.http.request_id import RequestIds
from twostroke.inspector.compare.routes import compare_router
from twostroke.inspector.content import ContentBook
from twostroke.inspector.fleet.live_fleet import LiveFleet, live_fleet_router
from twostroke.inspector.foresight.routes import foresight_router
from twostroke.inspector.front_door import CHAT, FrontDoor
from twostroke.inspector.live import LiveSource
from twostroke.inspector.model.facts import DescribeModel, FindFacts, find_once
from twostroke.inspector.model.routes import ModelRoutes
from twostroke.inspector.overview_routes import overview_router
from twostroke.inspector.request_routes import request_router
from twostroke.inspector.routes import InspectRoutes
from twostroke.inspector.simulations.routes import simulate_router
from twostroke.inspector.static_files import page_paths, page_routes
from twostroke.inspector.why.routes import why_router
from twostroke.observability.tracing.tracer import Tracer
from twostroke.server.adapters.routes import AdapterAnswer, adapters_router
from twostroke.server.anthropic.documented import ANTHROPIC_ANSWERS, document_models
from twostroke.server.anthropic.messages import messages_router
from twostroke.server.anthropic.models import anthropic_models_router
from twostroke.server.anthropic.request_ids import AnthropicRequestIds
from twostroke.server.anthropic_shape import REQUEST_ID
from twostroke.server.batches.answers import BATCH_ANSWERS, OUTPUT_FORMS
from twostroke.server.batches.message_objects import BATCHES_PATH as MESSAGE_BATCHES_PATH
from twostroke.server.batches.message_routes import MessageBatchRoutes
from twostroke.server.batches.openai_routes import BatchRoutes
from twostroke.server.batches.queue import BatchQueue
from twostroke.server.cache.answers import CacheObject, ClearedCache, PinnedPrefix
from twostroke.server.cache.routes import cache_router
from twostroke.server.distribution.routes import distribution_router
from twostroke.server.files.routes import FILES_PATH, FileRoutes
from twostroke.server.files.store import FileStore
from twostroke.server.http.access_log import AccessLog
from twostroke.server.http.api_document import LIMIT_HEADERS, document_api
from twostroke.server.http.body_json import max_values
from twostroke.server.http.docs_page.routes import docs_router
from twostroke.server.http.early_refusal import EarlyRefusal
from twostroke.server.http.errors import error_response, install_error_handlers
from twostroke.server.http.health import Health, Load, TargetList, Version, health_router
from twostroke.server.http.ignored_header import IGNORED_FIELDS
from twostroke.server.http.root_path import RootPath
from twostroke.server.ollama.dialect import OLLAMA_ANSWERS, ollama_router
from twostroke.server.openai.chat import chat_router
from twostroke.server.openai.chat_answer import ChatChunk, ChatCompletion
from twostroke.server.openai.embeddings.answer import EmbeddingList, PoolingList
from twostroke.server.openai.embeddings.routes import embeddings_router
from twostroke.server.openai.models import ModelCard, ModelList, models_router
from twostroke.server.openai.ranking.answer import Ranking, ScoreList
from twostroke.server.openai.ranking.routes import ranking_router
from twostroke.server.openai.text_completions.answer import Completion
from twostroke.server.openai.text_completions.routes import completions_router
from twostroke.server.openai.tokenization import (
    Detokenized,
    Tokenized,
    TokenizerInfo,
    tokenization_router,
)
from twostroke.server.options import ServerOptions
from twostroke.server.plain_shapes import CohereError, TeiError
from twostroke.server.responses.compaction import (
    CompactedResponse,
    InputTokens,
    compaction_router,
)
from twostroke.server.responses.conversations.objects import (
    ConversationObject,
    DeletedConversation,
)
from twostroke.server.responses.conversations.routes import conversations_router
from twostroke.server.responses.events import EVENTS
from twostroke.server.responses.objects import DeletedResponse, InputItemList, ResponseObject
from twostroke.server.responses.routes import responses_router
from twostroke.server.responses.store import ResponseStore
from twostroke.server.responses.stored_routes import stored_responses_router
from twostroke.server.responses.workroom import Workroom
from twostroke.server.state.server_state import ServerState
from twostroke.server.tracing import TRACE_RESPONSE, TraceRequests
from twostroke.server.vectors.cohere import CohereEmbeddings, cohere_router
from twostroke.server.vectors.tei import tei_router
from twostroke.server.version import package_version

ANSWERS: tuple[type[Struct], ...] = (
    ChatCompletion,
    ChatChunk,
    Completion,
    EmbeddingList,
    PoolingList,
    ScoreList,
    Ranking,
    ModelList,
    ModelCard,
    Tokenized,
    Detokenized,
    ResponseObject,
    InputItemList,
    DeletedResponse,
    CompactedResponse,
    InputTokens,
    ConversationObject,
    DeletedConversation,
    *EVENTS,
    TokenizerInfo,
    Load,
    TargetList,
    CacheObject,
    PinnedPrefix,
    ClearedCache,
    AdapterAnswer,
    Health,
    Version,
    *ANTHROPIC_ANSWERS,
    *OLLAMA_ANSWERS,
    CohereEmbeddings,
    CohereError,
    TeiError,
    *BATCH_ANSWERS,
)
# What scripts of web pages may read of an answer's head.
EXPOSED_HEADERS = (
    *("x-request-id", REQUEST_ID, TRACE_RESPONSE, IGNORED_FIELDS, "retry-after"),
    *LIMIT_HEADERS,
)
DESCRIPTION = (
    "OpenAI's, Anthropic's and Ollama's APIs over the twostroke engine. A field works, or is"
    " refused by name if it would change the answer; what changes no guarantee is ignored, and the"
    " header x-ignored-fields names it."
)


def create_app(
    source: LoadedModel | Future[LoadedModel],
    options: ServerOptions | None = None,
    gateway: Gateway | None = None,
    tracer: Tracer | None = None,
    ranker: LoadedModel | None = None,
    content: ContentBook | None = None,
    describe_model: DescribeModel | None = None,
) -> FastAPI:
    """An application that serves one model.

    Args:
        source: The model; or the future of one that is still loading, until when ``/health``
            answers 503.
        options: Names of the model, limits and time-outs.
        gateway: Keys and limits; by default there are none.
        tracer: Traces its calls. By default only the inspector reads what is noted; an exporting
            one's observer must watch the engine.
        ranker: The model of ``--context-ranker``, unless that is the served one.
        content: Keeps prompts and answers for the inspector; it must watch the engine, too.
        describe_model: Tells the inspector of the loaded model; by default it knows no layers.
    """
    options = options or ServerOptions()
    state = ServerState(source, options, ranker)
    return create_app_for(
        state,
        options,
        gateway,
        tracer=tracer,
        content=content,
        describe_model=describe_model,
    )


def create_app_for(
    state: ServerState,
    options: ServerOptions,
    gateway: Gateway | None = None,
    store: ResponseStore | None = None,
    tracer: Tracer | None = None,
    content: ContentBook | None = None,
    describe_model: DescribeModel | None = None,
    files: FileStore | None = None,
) -> FastAPI:
    """The application, for a caller that watches and drains ``state`` itself.

    Args:
        store: The store of responses; by default the one that ``options`` ask for.
        files: The store of files; by default the one that ``options`` ask for.
    """
    store = store or ResponseStore(options.responses_store, options.responses_store_size)
    files = files or FileStore(options.files_store, options.files_store_size)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loading = asyncio.ensure_future(state.load())
        await batches.start()
        yield
        loading.cancel()
        await batches.close()
        await files.close()
        await store.close()
        if gateway is not None:
            await gateway.close()

    app = FastAPI(
        title="twostroke",
        version=package_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # a path that is not in the document is a 404
    )
    install_error_handlers(app)
    if tracer is None and options.inspector:
        tracer = Tracer()
    if gateway is not None and options.inspector:
        gateway.open(page_paths())
    _add_middleware(app, state, options, gateway, tracer)
    find_facts = find_once(describe_model, lambda: state.model().client)
    batches = BatchQueue(app, state, files, OUTPUT_FORMS, options.max_body_size)
    feeds = Feeds()
    _add_routes(app, state, store, find_facts)
    app.include_router(cache_router(state, feeds))
    app.include_router(adapters_router(state))
    app.include_router(FileRoutes(files, batches.reader_of).router())
    app.include_router(BatchRoutes(batches).router())
    app.include_router(MessageBatchRoutes(batches).router())
    if tracer is not None and options.inspector:
        _add_inspector(app, state, tracer, content, find_facts, feeds)
    document_api(app, ANSWERS, gateway, amend=document_models)
    return app


def _add_middleware(
    app: FastAPI,
    state: ServerState,
    options: ServerOptions,
    gateway: Gateway | None,
    tracer: Tracer | None,
) -> None:
    """What each request passes before its route; what is added last comes first."""
    app.add_middleware(
        BodySizeLimit,
        limit=options.max_body_size,
        max_values=lambda: max_values(state.max_model_len()),
        tenant_of=lambda scope: caller_of(scope).tenant,
        refuse=error_response,
        files=BodyLimit("--max-file-size", options.max_file_size),
        file_paths=(FILES_PATH, MESSAGE_BATCHES_PATH),
    )
    app.add_middleware(EarlyRefusal, client=state.client_for_new_work)
    app.add_middleware(ReadLimits, refuse=error_response)
    if gateway is not None and gateway.needed:
        # Added after it, so it comes before: without a valid key no body is read.
        app.add_middleware(GatewayMiddleware, gateway=gateway, refuse=error_response)
    if options.allowed_origins:
        # Before the keys: a browser asks without one whether it may send one.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=("DELETE", "GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    if options.inspector:
        app.add_middleware(FrontDoor, leads_to=CHAT)
    app.add_middleware(RequestIds)
    app.add_middleware(AnthropicRequestIds)
    if tracer is not None:
        app.add_middleware(TraceRequests, tracer=tracer)
    if options.access_log:
        app.add_middleware(AccessLog, is_loading=state.is_loading)
    if options.root_path:
        app.add_middleware(RootPath, prefix=options.root_path)


def _add_routes(
    app: FastAPI, state: ServerState, store: ResponseStore, find_facts: FindFacts
) -> None:
    for router in (
        chat_router,
        completions_router,
        embeddings_router,
        ranking_router,
        tokenization_router,
        messages_router,
        anthropic_models_router,
        models_router,
        health_router,
        cohere_router,
        tei_router,
    ):
        app.include_router(router(state))
    app.include_router(ollama_router(state, find_facts))
    workroom = Workroom(store)
    app.include_router(responses_router(state, workroom))
    app.include_router(compaction_router(state, workroom))
    app.include_router(stored_responses_router(workroom))
    app.include_router(conversations_router(workroom))
    app.include_router(docs_router())


def _add_inspector(
    app: FastAPI,
    state: ServerState,
    tracer: Tracer,
    content: ContentBook | None,
    find_facts: FindFacts,
    feeds: Feeds,
) -> None:
    def client() -> EngineClient:
        return state.model().client

    source = LiveSource(
        client,
        lambda: state.model().name,
        lambda: state.status()[0] == "draining",
        tracer.calls,
        content,
        lambda: state.model().tokenizer,
    )
    app.include_router(InspectRoutes(lambda: source, feeds).router())
    app.include_router(request_router(lambda: source))
    app.include_router(overview_router(lambda: source))
    app.include_router(live_fleet_router(LiveFleet(state.parts), tracer.calls))
    app.include_router(compare_router(lambda: source))
    app.include_router(simulate_router())
    app.include_router(foresight_router(lambda: source))
    model = ModelRoutes(lambda: source, find_facts, client)
    app.include_router(model.router())
    app.include_router(why_router(lambda: source, find_facts, client, model.measured))
    app.include_router(distribution_router(state))
    app.router.routes += page_routes()
