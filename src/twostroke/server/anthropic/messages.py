"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request, request_digits
from twostroke.server.anthropic.documented import ANTHROPIC_ERRORS, stream_responses
from twostroke.server.anthropic.message_answer import Message, MessageResponseFormat, TokensCount
from twostroke.server.anthropic.message_call import message_call
from twostroke.server.anthropic.message_request import CountTokensRequest, MessageRequest
from twostroke.server.anthropic.names import NAMES
from twostroke.server.anthropic.turns import read_turns
from twostroke.server.anthropic_shape import anthropic_request_id
from twostroke.server.calls.prepare import fit_answer, prepare
from twostroke.server.calls.prompt import encode_messages
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


def messages_router(state: ServerState) -> APIRouter:
    """The routes of messages."""
    router = APIRouter(route_class=StrictRoute, tags=["messages"])

    @router.post(
        "/v1/messages",
        response_class=Response,
        responses=stream_responses(Message) | ANTHROPIC_ERRORS,
    )
    async def create_message(body: MessageRequest, request: Request) -> Response:
        """The model's answer to a conversation, in Anthropic's dialect."""
        body.check_thread()
        model = state.model_for_new_work(body.model).named(body.model)
        try:
            generation, answer = await _begin(model, body, request)
        except RequestTooLargeError as error:
            raise _too_long(error) from error
        return await generation.respond(answer, request)

    @router.post(
        "/v1/messages/count_tokens",
        response_class=Response,
        responses=answer_responses(TokensCount, "The count.", has_body=True) | ANTHROPIC_ERRORS,
    )
    async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
        """How many tokens a conversation's prompt has."""
        body.check_thread()
        model = state.model(body.model).named(body.model)
        try:
            turns = await read_turns(model, body, body.callable_tools())
            tokens = await encode_messages(model, turns.messages, turns.rendering)
        except RequestTooLargeError as error:
            raise _too_long(error) from error
        # How many they are is known only now, so the next request feels it.
        caller_of(request.scope).charge(len(tokens))
        return json_response(TokensCount(len(tokens)), ignored_header(turns.ignored))

    return router


async def _begin(
    model: ServedModel, body: MessageRequest, request: Request
) -> tuple[Generation, MessageResponseFormat]:
    """A generation that has been submitted, and how it is answered."""
    call = await message_call(model, body)
    message_id, caller = name_request(request.scope, "msg", "_"), caller_of(request.scope)
    prepared = await prepare(model, call, message_id, caller, _check_room)
    # Clients send what models of Anthropic answer at most, and are told by ``stop_reason``.
    asked = fit_answer(model, prepared.request, prepared.request.params.max_tokens)
    longest_answer = min(body.max_tokens, model.client.info.max_new_tokens or body.max_tokens)
    answer = MessageResponseFormat(
        message_id,
        anthropic_request_id(request_digits(request.scope)),
        model.name,
        body,
        prepared.reading.make_parts(),
        fills_context=(asked.params.max_tokens or 0) < longest_answer,
    )
    with NAMES.applied():
        generation = Generation(
            model,
            caller,
            message_id,
            [asked],
            ignored=call.ignored,
            streamed=bool(body.stream),
            prompt_only=body.max_tokens == 0,
        )
    return generation, answer


def _check_room(model: ServedModel, prompt: Sequence[int]) -> None:
    """Raises RequestTooLargeError for a prompt that leaves no room for an answer."""
    max_total, num_tokens = model.client.info.longest_request, len(prompt)
    if num_tokens >= max_total:
        raise RequestTooLargeError(
            f"{num_tokens} tokens > {max_total - 1} maximum",
            needed=num_tokens + 1,
            available=max_total,
            param="messages",
            hint="shorten the conversation",
        )


def _too_long(error: RequestTooLargeError) -> InvalidRequestError:
    """The error in the words by which this API's clients know to shorten a conversation."""
    return InvalidRequestError(
        f"prompt is too long: {error.message}", param="messages", hint=error.hint
    )
