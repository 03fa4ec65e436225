"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.generation_request import GenerationRequest
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request, request_digits
from twostroke.server.anthropic.answer_form import calls_of_message, output_form
from twostroke.server.anthropic.documented import ANTHROPIC_ERRORS, stream_responses
from twostroke.server.anthropic.message_answer import Message, MessageResponseFormat, TokensCount
from twostroke.server.anthropic.message_request import CountTokensRequest, MessageRequest
from twostroke.server.anthropic.names import NAMES
from twostroke.server.anthropic.prompt import messages_prompt
from twostroke.server.anthropic_shape import anthropic_request_id
from twostroke.server.generation.answer_reading import AnswerReading
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.openai.tools.call_form import constrain_answer
from twostroke.server.openai.tools.request_tools import tool_schemas
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
        model = state.model_for_new_work()
        model.check_name(body.model)
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
        model = state.model()
        model.check_name(body.model)
        try:
            functions = list((body.callable_tools() or {}).values())
            prompt = await messages_prompt(model, body, functions, must_fit=False)
        except RequestTooLargeError as error:
            raise _too_long(error) from error
        # How many they are is known only now, so the next request feels it.
        caller_of(request.scope).charge(len(prompt.token_ids))
        return json_response(TokensCount(len(prompt.token_ids)), ignored_header(prompt.ignored))

    return router


async def _begin(
    model: ServedModel, body: MessageRequest, request: Request
) -> tuple[Generation, MessageResponseFormat]:
    """A generation that has been submitted, and how it is answered."""
    params = body.to_params(model.client.info.sampling_defaults)
    tools = body.callable_tools()
    functions = list((tools or {}).values())
    message_id = name_request(request.scope, "msg", "_")
    caller = caller_of(request.scope)
    prompt = await messages_prompt(model, body, functions, must_fit=True, trace=caller.trace)
    params = _within_context(model.client.info, len(prompt.token_ids), params)
    limit = model.client.info.max_new_tokens
    schemas = None if tools is None else tool_schemas(functions)
    reading = AnswerReading(model, schemas, prompt.token_ids, body.max_calls)
    if model.reasoning_parser is not None:
        params = replace(params, thinking_token_budget=body.thinking_budget)
    with NAMES.applied():
        params = replace(params, structured_outputs=output_form(body))
        calls = calls_of_message(body, tools)
        params = await constrain_answer(model, calls, reading, params, caller.tenant)
    answer = MessageResponseFormat(
        message_id,
        anthropic_request_id(request_digits(request.scope)),
        model.name,
        body,
        reading.make_parts(),
        fills_context=(params.max_tokens or 0) < min(body.max_tokens, limit or body.max_tokens),
    )
    call = GenerationRequest(
        request_id=message_id,
        prompt_token_ids=prompt.token_ids,
        params=params,
        ttft_target=None if body.deadline_ms is None else body.deadline_ms / 1000,
        labels=body.labels,
    )
    generation = Generation(
        model,
        caller,
        message_id,
        [call],
        ignored=prompt.ignored,
        streamed=bool(body.stream),
        prompt_only=body.max_tokens == 0,
    )
    return generation, answer


def _within_context(info: ExecutorInfo, num_tokens: int, params: SamplingParams) -> SamplingParams:
    """Parameters whose ``max_tokens`` fit beside a prompt: here, that is no error.

    Clients send what the models of Anthropic can answer at most, and are told by ``stop_reason``.

    Raises:
        RequestTooLargeError: The prompt leaves no room for an answer.
    """
    max_total = info.longest_request
    if num_tokens >= max_total:
        raise RequestTooLargeError(
            f"{num_tokens} tokens > {max_total - 1} maximum",
            needed=num_tokens + 1,
            available=max_total,
            param="messages",
            hint="shorten the conversation",
        )
    return replace(params, max_tokens=min(params.max_tokens or 1, max_total - num_tokens))


def _too_long(error: RequestTooLargeError) -> InvalidRequestError:
    """In the words by which this API's clients know that a conversation must be shortened."""
    return InvalidRequestError(
        f"prompt is too long: {error.message}", param="messages", hint=error.hint
    )
