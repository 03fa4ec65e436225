"""``POST /v1/responses``: the way of a request, from its items to its response."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import caller_of
from twostroke.http.body_size import SMALL_BODY, held_body
from twostroke.http.request_id import name_request
from twostroke.server.generation.encoding import beside_loop
from twostroke.server.generation.generation import Generation
from twostroke.server.generation.memory_limits import MANY_ENTRIES
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.json_response import encode_json, json_response
from twostroke.server.http.sse import EventStream, run_while_connected
from twostroke.server.responses.document import event_stream
from twostroke.server.responses.items import encode_items
from twostroke.server.responses.objects import ConversationReference, ResponseObject
from twostroke.server.responses.open_items import IN_PROGRESS
from twostroke.server.responses.request import ResponsesRequest
from twostroke.server.responses.request_tools import HostedTool
from twostroke.server.responses.response_call import NAMES, prepare_response, read_response
from twostroke.server.responses.run import ResponseRun
from twostroke.server.responses.workroom import Brought, Workroom
from twostroke.server.state.server_state import ServerState


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
        model = state.model_for_new_work(body.model).named(body.model)
        body.check_combinations()
        caller = caller_of(request.scope)
        request_id = name_request(request.scope, "resp")
        brought = await workroom.brought(caller.tenant, body)
        large = held_body(request.scope).num_received > SMALL_BODY
        given = await beside_loop(
            partial(_stored_input, workroom, body, brought), slow=large or brought.has_many
        )
        asked = await read_response(model, body, brought, large=large)
        prepared = await prepare_response(model, asked, request_id, caller)
        response_id = f"resp_{request_id.rpartition('-')[2]}"
        run = ResponseRun(
            first_state(body, response_id, model.name, prepared.request.params),
            prepared.reading.make_parts(),
            model.tokenizer,
            called=asked.called,
            keeps_events=bool(body.background and body.stream),
            on_end=lambda run: workroom.keep(run, caller.tenant, given),
        )
        with NAMES.applied():
            # What is given out is held until the end, streamed or not.
            generation = Generation(
                model,
                caller,
                request_id,
                [prepared.request],
                streamed=False,
                ignored=asked.call.ignored,
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


def _stored_input(workroom: Workroom, body: ResponsesRequest, brought: Brought) -> bytes:
    """The input's items as they are stored."""
    given = encode_items(brought.listed())
    if body.stored:
        workroom.store.check_size(len(given))
    return given


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


def first_state(
    body: ResponsesRequest, response_id: str, model_name: str, params: SamplingParams
) -> ResponseObject:
    """The response before any output; sampling is shown as it is done."""
    choice, name = body.tool_choice or "auto", body.conversation_id
    effort = None if body.reasoning is None else body.reasoning.effort
    return ResponseObject(
        id=response_id,
        created_at=int(time.time()),
        status="queued" if body.background else IN_PROGRESS,
        background=bool(body.background),
        conversation=None if name is None else ConversationReference(name),
        frequency_penalty=params.frequency_penalty,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        model=model_name,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        presence_penalty=params.presence_penalty,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": effort, "summary": None},
        safety_identifier=body.safety_identifier,
        store=body.stored,
        temperature=params.temperature,
        text={"format": dict(body.form)},
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        tools=[tool.shown() for tool in body.tools or () if not isinstance(tool, HostedTool)],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
