"""``POST /api/chat`` and ``POST /api/generate``: the way of a request to its answer."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.server.calls.prepare import fit_answer, prepare
from twostroke.server.generation.generation import Generation
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.ollama.documented import OLLAMA_ERRORS, line_responses
from twostroke.server.ollama.generation_answer import (
    LINES,
    ChatLine,
    GenerateLine,
    LineMaker,
    OllamaResponseFormat,
    chat_line,
    generate_line,
    loaded_line,
)
from twostroke.server.ollama.generation_fields import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaGenerationFields,
)
from twostroke.server.ollama.message_fields import OllamaMessageFields
from twostroke.server.ollama.names import known_model, known_name
from twostroke.server.ollama.ollama_call import NAMES, ollama_call, sampling_fields, validated
from twostroke.server.ollama.pieces import PieceReader
from twostroke.server.ollama.route import OllamaRoute
from twostroke.server.openai.answer_form import compile_answer_form
from twostroke.server.openai.text_completions.prompt import encode_prompts
from twostroke.server.openai.text_completions.request import CompletionRequest
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState
from twostroke.text.answer_parsing.answer_parts import AnswerParts


def ollama_generation_router(state: ServerState) -> APIRouter:
    """The routes that generate text."""
    router = APIRouter(route_class=OllamaRoute)

    @router.post(
        "/api/chat", response_class=Response, responses=line_responses(ChatLine) | OLLAMA_ERRORS
    )
    async def ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
        """The model's answer to a conversation, in Ollama's dialect."""
        model = known_model(state.model_for_new_work(body.model), body.model)
        name = known_name(model, body.model)
        if not body.messages:
            return _loaded(chat_line, model, name, body)
        return await _respond(model, name, body, body.messages, request, chat_line)

    @router.post(
        "/api/generate",
        response_class=Response,
        responses=line_responses(GenerateLine) | OLLAMA_ERRORS,
    )
    async def ollama_generate(body: OllamaGenerateRequest, request: Request) -> Response:
        """The model's answer to a single prompt."""
        model = known_model(state.model_for_new_work(body.model), body.model)
        name = known_name(model, body.model)
        if not body.prompt:
            return _loaded(generate_line, model, name, body)
        if body.raw:
            return await _respond_raw(model, name, body, body.prompt, request)
        turns = [] if not body.system else [_message("system", body.system)]
        turns.append(_message("user", body.prompt))
        return await _respond(model, name, body, turns, request, generate_line)

    return router


def _message(role: str, content: str) -> OllamaMessageFields:
    return OllamaMessageFields.model_validate({"role": role, "content": content})


def _loaded(
    make_line: LineMaker, model: ServedModel, name: str, body: OllamaGenerationFields
) -> Response:
    """The answer where nothing is to be written; what is malformed is refused all the same."""
    completion, ignored = _completion(model, body, "")
    _params(model, completion)
    return json_response(loaded_line(make_line, name), ignored_header(ignored))


def _completion(
    model: ServedModel, body: OllamaGenerationFields, prompt: str
) -> tuple[CompletionRequest, list[str]]:
    """The request that has a prompt completed as it is, and fields that change nothing."""
    fields, ignored = sampling_fields(model, body)
    values = {
        **fields,
        "prompt": prompt,
        "stream": body.streamed,
        "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
    }
    return validated(CompletionRequest, values), body.dropped_fields() + ignored


def _params(model: ServedModel, completion: CompletionRequest) -> SamplingParams:
    with NAMES.applied():
        return completion.to_params(model.client.info.sampling_defaults)


async def _respond(
    model: ServedModel,
    name: str,
    body: OllamaGenerationFields,
    messages: list[OllamaMessageFields],
    request: Request,
    make_line: LineMaker,
) -> Response:
    """The answer to a conversation."""
    request_id, caller = name_request(request.scope, "ollama"), caller_of(request.scope)
    context = (body.context if isinstance(body, OllamaGenerateRequest) else None) or []
    call, names, limit = await ollama_call(model, body, messages, context)
    with NAMES.applied(), names.applied():
        prepared = await prepare(model, call, request_id, caller)
        prompt = [*context, *prepared.prompt.token_ids]
        asked = replace(prepared.request, prompt_token_ids=prompt)
        generation = Generation(
            model,
            caller,
            request_id,
            [fit_answer(model, asked, limit)],
            streamed=body.streamed,
            ignored=call.ignored,
        )
    reader = PieceReader(prepared.reading.make_parts(), show_thoughts=body.think is not False)
    answer = OllamaResponseFormat(
        make_line,
        name,
        reader,
        model.tokenizer,
        num_top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt=prompt if make_line is generate_line else None,
    )
    return await generation.respond(answer, request, LINES)


async def _respond_raw(
    model: ServedModel, name: str, body: OllamaGenerateRequest, prompt: str, request: Request
) -> Response:
    """The answer to a prompt that is the model's input as it is."""
    for param, given in (
        ("system", body.system),
        ("context", body.context),
        ("think", body.think),
        ("truncate", body.truncate),
    ):
        if given:
            raise InvalidRequestError(
                f"{param} does not go with raw", param=param, hint="leave one of them out"
            )
    completion, ignored = _completion(model, body, prompt)
    params = _params(model, completion)
    request_id, caller = name_request(request.scope, "ollama"), caller_of(request.scope)
    with NAMES.applied():
        params = await compile_answer_form(model, completion.asked_forms(), params, caller.tenant)
        (encoded,) = await encode_prompts(model, completion, params)
        (asked,) = completion.engine_requests(request_id, [encoded.token_ids], params)
        generation = Generation(
            model,
            caller,
            request_id,
            [fit_answer(model, asked, params.max_tokens)],
            streamed=body.streamed,
            ignored=ignored,
        )
    answer = OllamaResponseFormat(
        generate_line,
        name,
        PieceReader(AnswerParts(None), show_thoughts=True),
        model.tokenizer,
        num_top_logprobs=completion.logprobs,
    )
    return await generation.respond(answer, request, LINES)
