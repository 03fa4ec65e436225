"""``POST /v1/chat/completions``: the way of a request, from its body to its answer."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.server.calls.prepare import prepare
from twostroke.server.generation.encoding import beside_loop
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.chat_answer import ChatChunk, ChatCompletion, ChatResponseFormat
from twostroke.server.openai.chat_call import chat_call
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.openai.former_calls import without_cut_calls
from twostroke.server.state.server_state import ServerState


def chat_router(state: ServerState) -> APIRouter:
    """The route of chat completions."""
    router = APIRouter(route_class=StrictRoute, tags=["chat"])

    responses = answer_responses(
        ChatCompletion,
        "The answer; or, streamed, its pieces, then [DONE].",
        stream=ChatChunk,
        has_body=True,
    )

    # Some clients are given the server's address without /v1.
    @router.post("/chat/completions", include_in_schema=False)
    @router.post(
        "/v1/chat/completions", response_class=Response, responses=responses | ERROR_RESPONSES
    )
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """The model's answer to a conversation."""
        model = state.model_for_new_work(body.model).named(body.model)
        request_id, caller = name_request(request.scope, "chatcmpl"), caller_of(request.scope)
        find_whole = partial(without_cut_calls, body.messages)
        whole = await beside_loop(find_whole, slow=body.is_large)
        if whole.left_out:
            body = body.model_copy(update={"messages": whole.messages})
        with body.field_names.applied():
            call = await chat_call(model, body)
            prepared = await prepare(model, call, request_id, caller)
            answer = ChatResponseFormat(request_id, model, body, prepared)
            generation = Generation(
                model,
                caller,
                request_id,
                [prepared.request],
                streamed=bool(body.stream),
                ignored=[*body.dropped_fields(), *whole.left_out, *call.ignored],
                prompt_only=body.prompt_only,
            )
        return await generation.respond(answer, request)

    return router
