"""``POST /v1/inspect/distribution``: a completion that says what its first token was drawn from.

It is a request like any other: with a key, within its limits, charged, and run beside the rest.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.gateway.caller import caller_of
from twostroke.http.request_id import name_request
from twostroke.observability.tracing import names
from twostroke.server.distribution.answer import NextTokenFormat
from twostroke.server.distribution.request import DistributionRequest
from twostroke.server.generation.encoding import check_tokens, encode_text
from twostroke.server.generation.generation import Generation
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.answer_form import compile_answer_form
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


def distribution_router(state: ServerState) -> APIRouter:
    """The route behind the inspector's playground."""
    router = APIRouter(route_class=StrictRoute, include_in_schema=False)

    @router.post("/v1/inspect/distribution", response_class=Response)
    async def next_token(body: DistributionRequest, request: Request) -> Response:
        """The next token's distribution, filter by filter, and the token that is drawn from it."""
        model = state.model_for_new_work(body.model).named(body.model)
        params = body.to_params(model.client.info.sampling_defaults)
        caller = caller_of(request.scope)
        params = await compile_answer_form(model, body.asked_forms(), params, caller.tenant)
        prompt = await _encode(model, body)
        caller.trace.stage(names.TOKENISE, {names.NUM_TOKENS: len(prompt)})
        request_id = name_request(request.scope, "cmpl")
        generation = Generation(
            model,
            caller,
            request_id,
            body.engine_requests(request_id, [prompt], params),
            streamed=False,
            ignored=body.dropped_fields(),
        )
        answer = NextTokenFormat(request_id, model.name, model.tokenizer)
        return await generation.respond(answer, request)

    return router


async def _encode(model: ServedModel, body: DistributionRequest) -> list[int]:
    """The tokens of the prompt, then those of the answer so far."""
    answer = body.answer_token_ids or []
    if isinstance(body.prompt, str):
        specials = body.add_special_tokens is not False
        prompt = await encode_text(model, body.prompt, add_special_tokens=specials, must_fit=True)
    else:
        prompt = body.prompt
        check_tokens(model, prompt, "prompt")
    check_tokens(model, answer, "answer_token_ids")
    if not prompt:
        raise InvalidRequestError(
            "the prompt is empty", param="prompt", hint="send at least one token"
        )
    return prompt + answer
