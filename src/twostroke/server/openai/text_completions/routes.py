"""``POST /v1/completions``: the way of a request, from its body to its answer."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.observability.tracing import names
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.answer_form import compile_answer_form
from twostroke.server.openai.text_completions.answer import Completion, CompletionResponseFormat
from twostroke.server.openai.text_completions.prompt import encode_prompts
from twostroke.server.openai.text_completions.request import CompletionRequest
from twostroke.server.state.server_state import ServerState


def completions_router(state: ServerState) -> APIRouter:
    """The route of text completions."""
    router = APIRouter(route_class=StrictRoute, tags=["completions"])

    responses = answer_responses(
        Completion,
        "The answers; or, streamed, their pieces, then [DONE].",
        stream=Completion,
        has_body=True,
    )

    @router.post("/completions", include_in_schema=False)
    @router.post("/v1/completions", response_class=Response, responses=responses | ERROR_RESPONSES)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """What the model writes after a text, or after each of several."""
        model = state.model_for_new_work(body.model).named(body.model)
        params = body.to_params(model.client.info.sampling_defaults)
        caller = caller_of(request.scope)
        params = await compile_answer_form(model, body.asked_forms(), params, caller.tenant)
        prompts = await encode_prompts(model, body, params)
        num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        caller.trace.stage(names.TOKENISE, {names.NUM_TOKENS: num_tokens})
        request_id = name_request(request.scope, "cmpl")
        token_ids = [prompt.token_ids for prompt in prompts]
        requests = body.engine_requests(request_id, token_ids, params)
        generation = Generation(
            model,
            caller,
            request_id,
            requests,
            streamed=bool(body.stream),
            ignored=body.dropped_fields(),
            prompt_only=body.prompt_only,
        )
        tokenizer = model.tokenizer
        answer = CompletionResponseFormat(
            request_id,
            model.name,
            tokenizer,
            body,
            prompts,
            ends_with_usage=model.ends_with_usage,
        )
        return await generation.respond(answer, request)

    return router
