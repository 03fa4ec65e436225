"""``POST /v1/embeddings``: the way of a request, from its body to its vectors."""

from __future__ import annotations

import asyncio
import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.pooling import resolve_pooling
from twostroke.gateway.caller import caller_of
from twostroke.observability.tracing import names
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.http.request_id import name_request
from twostroke.server.openai.embeddings.answer import EmbeddingFormat, EmbeddingList
from twostroke.server.openai.embeddings.prompt_tokens import PoolingPrompt, PromptEncoder
from twostroke.server.openai.embeddings.request import EmbeddingRequest
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


def embeddings_router(state: ServerState) -> APIRouter:
    """The route of embeddings."""
    router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
    responses = answer_responses(EmbeddingList, "The embeddings.", has_body=True)

    @router.post("/v1/embeddings", response_class=Response, responses=responses | ERROR_RESPONSES)
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """The embedding of a text, or of each of several, by the model's own pooling."""
        model = state.model_for_new_work()
        model.check_name(body.model)
        body.check_shared_fields()
        params = body.pooling_params()
        resolve_pooling(params, model.client.info.pooling, 0)  # before the work of encoding
        prompts = await _encode_inputs(model, body)
        caller = caller_of(request.scope)
        caller.trace.stage(names.TOKENISE)
        request_id = name_request(request.scope, "embd")
        generation = Generation(
            model,
            caller,
            request_id,
            body.pooling_requests(request_id, prompts, params),
            streamed=False,
            ignored=body.dropped_fields(),
            gradual=True,
        )
        await generation.submit_rest()
        is_base64 = body.encoding_format == "base64"
        created = int(time.time())
        answer = EmbeddingFormat(request_id, model.name, created, base64_encoded=is_base64)
        return await generation.respond(answer, request)

    return router


async def _encode_inputs(model: ServedModel, body: EmbeddingRequest) -> list[PoolingPrompt]:
    specials = body.add_special_tokens is not False
    encoder = PromptEncoder(model, body.truncate_prompt_tokens, specials)
    inputs = body.inputs()
    prompts = []
    for index, prompt in enumerate(inputs):
        param = "input" if len(inputs) == 1 else f"input[{index}]"
        prompts.append(await encoder.encode(prompt, param))
        await asyncio.sleep(0)  # other requests get their turn in between
    return prompts
