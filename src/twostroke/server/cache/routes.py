"""``/v1/cache``: what the prefix cache holds, pinned prefixes, and the stream of KV events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter, Query, Request
from msgspec import UNSET
from starlette.responses import Response, StreamingResponse

from twostroke.core.errors import AdminKeyNeededError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.answer import output_error
from twostroke.engine.cache_orders import CacheReport, ClearCache, PinPrefix, ShowCache
from twostroke.engine.clients.base import EngineClient
from twostroke.gateway.caller import Caller, caller_of
from twostroke.gateway.feeds import Feeds
from twostroke.http.request_id import name_request
from twostroke.server.cache.answers import CacheObject, ClearedCache, PinnedPrefix
from twostroke.server.cache.request import PinRequest
from twostroke.server.calls.prompt import encode_messages
from twostroke.server.generation.encoding import check_tokens
from twostroke.server.http.api_document import ERROR_RESPONSES, Responses, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.openai.chat_messages import bounded_messages, turn_options
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState

# How often a stream looks for new events, and how long it is silent at most: proxies close others.
POLL_SECONDS, SILENCE_SECONDS = 0.05, 15.0
MAX_SEQ = 2**53
STREAMED: Responses = {
    200: {
        "description": "Server-sent events; each is a batch of KV events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def cache_router(state: ServerState, feeds: Feeds) -> APIRouter:
    """The routes of the prefix cache."""
    router = APIRouter(route_class=StrictRoute, tags=["cache"])
    refusals: Responses = {s: ERROR_RESPONSES[s] for s in (400, 401, 403, 404, 500, 503)}

    @router.get(
        "/v1/cache",
        response_class=Response,
        responses=answer_responses(CacheObject, "What is held.") | refusals,
    )
    async def show_cache(request: Request, model: str | None = None) -> Response:
        """The cached prefixes as a tree, and how full each tier is."""
        caller = caller_of(request.scope)
        order = ShowCache(None if caller.admin else caller.tenant)
        report = await _model(state, model).client.manage_cache(order)
        return await asyncio.to_thread(json_response, _shown(report, caller))

    @router.delete(
        "/v1/cache",
        response_class=Response,
        responses=answer_responses(ClearedCache, "It is empty.") | refusals,
    )
    async def clear_cache(request: Request, model: str | None = None) -> Response:
        """Forget all prefixes, pinned ones and those in tiers too. Running requests go on."""
        _only_for_admins(caller_of(request.scope))
        report = await _model(state, model).client.manage_cache(ClearCache())
        engines = report.engines or UNSET
        return json_response(ClearedCache(cleared_blocks=report.cleared_blocks, engines=engines))

    @router.post(
        "/v1/cache/prefixes",
        response_class=Response,
        responses=answer_responses(PinnedPrefix, "It is pinned.", has_body=True) | ERROR_RESPONSES,
    )
    async def pin_prefix(body: PinRequest, request: Request) -> Response:
        """Compute a prefix, unless it is cached, and evict it last for a time."""
        model = state.model_for_new_work(body.model)
        model.check_name(body.model)
        body.check_combinations()
        request_id = name_request(request.scope, "cache")
        answer = await _pin(model, body, caller_of(request.scope), request_id)
        return json_response(answer, ignored_header(body.dropped_fields()))

    @router.get("/v1/cache/events", response_class=Response, responses=STREAMED | refusals)
    async def stream_events(
        request: Request, since: int = Query(-1, ge=-1, le=MAX_SEQ), model: str | None = None
    ) -> Response:
        """What is stored and removed, in vLLM's form, from the batch after number `since` on."""
        _only_for_admins(caller := caller_of(request.scope))
        client = _model(state, model).client
        client.kv_events(MAX_SEQ)  # raises here, with a status, if nothing is published
        return StreamingResponse(
            feeds.counted(_frames(state, client, since), caller),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    return router


def _model(state: ServerState, name: str | None) -> ServedModel:
    """The model whose cache is meant; raises ``ModelNotFoundError`` if there is none."""
    model = state.model(name)
    model.check_name(name)
    return model


def _shown(report: CacheReport, caller: Caller) -> CacheObject:
    return CacheObject(
        block_size=report.block_size,
        tiers=report.tiers if caller.admin else [],  # how full they are is what all keys do
        prefixes=report.prefixes,
        left_out_blocks=report.left_out_blocks,
    )


async def _pin(
    model: ServedModel, body: PinRequest, caller: Caller, request_id: str
) -> PinnedPrefix:
    tokens, salt = await _tokens_of(model, body), body.cache_salt or ""
    num_cached = await _compute(model, caller, request_id, tokens, salt)
    order = PinPrefix(tokens, caller.salt(salt), body.ttl, caller.tenant)
    report = await model.client.manage_cache(order)
    return PinnedPrefix(
        id=report.prefix_id,
        prompt_tokens=len(tokens),
        pinned_tokens=report.pinned_tokens,
        cached_tokens=num_cached,
        expires_at=int(time.time() + body.ttl),
    )


def _only_for_admins(caller: Caller) -> None:
    if not caller.admin:
        raise AdminKeyNeededError(
            "this concerns all tenants, so it needs an admin key",
            hint="make one with twostroke key NAME --admin",
        )


async def _tokens_of(model: ServedModel, body: PinRequest) -> list[int]:
    if body.tokens is not None:
        check_tokens(model, body.tokens, "tokens")
        return body.tokens
    messages = await asyncio.to_thread(bounded_messages, model, body.messages or [])
    return await encode_messages(model, messages, turn_options(False, None), must_fit=True)


async def _compute(
    model: ServedModel, caller: Caller, request_id: str, tokens: list[int], salt: str
) -> int:
    """Run the prefix through the model. Returns how many of its tokens were cached already."""
    call = GenerationRequest(
        request_id=request_id,
        prompt_token_ids=tokens,
        params=SamplingParams(max_tokens=1, temperature=0.0, detokenize=False),
        cache_salt=salt,
    )
    num_cached = 0
    for stream in caller.submit(model.client, [call]):
        try:
            async for output in stream:
                if (error := output_error(output)) is not None:
                    raise error
                num_cached = output.num_cached_tokens
        finally:
            stream.abort()
    return num_cached


async def _frames(state: ServerState, client: EngineClient, since: int) -> AsyncIterator[bytes]:
    """The stream, until its client leaves or the server drains."""
    encoder, silent = msgspec.json.Encoder(), 0.0
    while state.status()[0] != "draining":
        batches = client.kv_events(since)
        for batch in batches:
            since = batch.seq
            yield b"id: %d\ndata: %s\n\n" % (batch.seq, encoder.encode(batch))
        silent = 0.0 if batches else silent + POLL_SECONDS
        if silent >= SILENCE_SECONDS:
            silent = 0.0
            yield b": nothing has changed\n\n"
        await asyncio.sleep(POLL_SECONDS)
