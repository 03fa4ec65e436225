"""``POST /v1/responses``: the way of a request, from its items to its response."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import caller_of
from twostroke.server.generation.encoding import beside_loop, check_length
from twostroke.server.generation.generation import Generation
from twostroke.server.generation.memory_limits import MANY_ENTRIES
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.body_size import SMALL_BODY, held_body
from twostroke.server.http.json_response import encode_json, json_response
from twostroke.server.http.request_id import name_request
from twostroke.server.http.sse import EventStream, run_while_connected
from twostroke.server.openai.chat_messages import num_chars
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.responses.as_chat import (
    chat_request,
    response_call,
    terms_of_responses,
)
from twostroke.server.responses.conversation import chat_messages
from twostroke.server.responses.document import event_stream
from twostroke.server.responses.items import (
    GivenItem,
    Item,
    ItemReference,
    as_items,
    listed_items,
    read_items,
    resolved,
)
from twostroke.server.responses.objects import ResponseObject
from twostroke.server.responses.open_items import IN_PROGRESS
from twostroke.server.responses.request import FunctionTool, ResponsesRequest
from twostroke.server.responses.run import ResponseRun
from twostroke.server.responses.workroom import Workroom
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState

MANY_ITEMS = 256  # more of a stored conversation are made a chat's messages on a thread


def responses_router(state: ServerState, workroom: Workroom) -> APIRouter:
    """The route that makes responses."""
    router = APIRouter(route_class=StrictRoute, tags=["responses"])
    responses = answer_responses(
        ResponseObject,
        "The response; or, streamed, its events.",
        has_body=True,
    )
    responses[200]["content"] |= event_stream()

    # Some clients are given the server's address without /v1.
    @router.post("/responses", include_in_schema=False)
    @router.post("/v1/responses", response_class=Response, responses=responses | ERROR_RESPONSES)
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """The model's answer to a conversation of items, which the server may keep."""
        model = state.model_for_new_work()
        model.check_name(body.model)
        body.check_combinations()
        caller = caller_of(request.scope)
        request_id = name_request(request.scope, "resp")
        own = await _without_references(workroom, caller.tenant, body.input or [])
        before = await _items_before(workroom, caller.tenant, body.previous_response_id)
        large = held_body(request.scope).num_received > SMALL_BODY or len(before) > MANY_ITEMS
        work = partial(_as_chat, model, workroom, body, own, before)
        given, chat, ignored = await beside_loop(work, slow=large)
        call = await response_call(model, chat, ignored, request_id, caller)
        response_id = f"resp_{request_id.rpartition('-')[2]}"
        response = _first_state(body, response_id, model.name, call.params)

        def keep(run: ResponseRun) -> None:
            if body.stored:
                workroom.keep(run, caller.tenant, given)

        run = ResponseRun(
            response,
            call.reading,
            model.client.tokenizer,
            keeps_events=bool(body.background and body.stream),
            on_end=keep,
        )
        with terms_of_responses():
            # What is given out is held until the end, streamed or not.
            generation = Generation(
                model, caller, request_id, call.requests, streamed=False, ignored=call.ignored
            )
        stream = _stream(run, generation) if body.stream else None
        workroom.begin(run, generation, caller.tenant, given)
        if stream is not None:
            return stream
        if body.background:
            return json_response(run.snapshot(), generation.headers)
        encoded = await run_while_connected(_whole(run), request.receive, run.abandon)
        return Response(encoded, 200 if encoded else 499, generation.headers, "application/json")

    return router


def _as_chat(
    model: ServedModel,
    workroom: Workroom,
    body: ResponsesRequest,
    own: str | Sequence[Item],
    before: Sequence[dict[str, Any]],
) -> tuple[bytes, ChatCompletionRequest, list[str]]:
    """The input's items as they are stored, the conversation as a chat request, and what of the
    body is ignored.
    """
    items = as_items(own)
    chat = chat_request(body, chat_messages(body.instructions, [*read_items(before), *items]))
    if body.truncation != "auto":  # before the work on what is too long
        with terms_of_responses():
            check_length(model, num_chars(chat.messages), "messages")
    given = encode_items(listed_items(items))
    if body.stored:
        workroom.store.check_size(len(given))
    return given, chat, body.dropped_fields()


def encode_items(items: Sequence[Mapping[str, Any]]) -> bytes:
    """JSON of an input's items, as it is stored; lone surrogates are refused."""
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":"))
    check_unicode("input", [text])
    return text.encode()


async def _without_references(
    workroom: Workroom, tenant: str, given: str | Sequence[GivenItem]
) -> str | list[Item]:
    """The input, with the items that it refers to."""
    if isinstance(given, str):
        return given
    ids = [item.id for item in given if isinstance(item, ItemReference)]
    check_unicode("input", ids)
    return resolved(given, await workroom.store.items(tenant, ids) if ids else {})


async def _items_before(
    workroom: Workroom, tenant: str, previous: str | None
) -> list[dict[str, Any]]:
    """Input and output of the response that this one goes on from, and of all before it."""
    if previous is None:
        return []
    if workroom.running(tenant, previous) is not None:
        raise InvalidRequestError(
            f"the response {previous!a} has not ended",
            param="previous_response_id",
            hint="wait for it, or cancel it",
        )
    turns = await workroom.store.conversation(tenant, previous)
    return [item for turn in turns for item in turn.input + turn.output]


def _stream(run: ResponseRun, generation: Generation) -> EventStream:
    """The client's stream of events. In the background a response outlives its client."""

    def leave() -> None:
        if run.response.background:
            run.leave(stream)
        else:
            run.abandon()

    stream = EventStream(leave, generation.headers)
    run.stream_to(stream)
    return stream


async def _whole(run: ResponseRun) -> bytes:
    await run.ended
    usage = run.response.usage
    if usage is not None and usage.output_tokens > MANY_ENTRIES:
        return await asyncio.to_thread(encode_json, run.response)
    return encode_json(run.response)


def _first_state(
    body: ResponsesRequest, response_id: str, model_name: str, params: SamplingParams
) -> ResponseObject:
    """The response before any output; sampling is shown as it is done."""
    choice = body.tool_choice or "auto"
    effort = None if body.reasoning is None else body.reasoning.effort
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        status="queued" if body.background else IN_PROGRESS,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model_name,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": effort, "summary": None},
        safety_identifier=body.safety_identifier,
        store=body.stored,
        temperature=params.temperature,
        text={"format": dict(body.form)},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(),
        tools=[_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return tool.model_dump(include={"type", "name", "description", "parameters", "strict"})
