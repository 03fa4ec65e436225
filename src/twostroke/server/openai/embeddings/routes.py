"""``POST /v1/embeddings`` and ``POST /pooling``: the way of a request to its vectors."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import APIRouter, Request
from starlette.responses import Response

from twostroke.core.pooling import unpack_vector
from twostroke.server.generation.generation import Generation
from twostroke.server.http.api_document import ERROR_RESPONSES, answer_responses
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.embeddings.answer import (
    Embedding,
    EmbeddingList,
    PooledStates,
    PoolingList,
    PromptUsage,
    VectorFormat,
    base64_of,
)
from twostroke.server.openai.embeddings.pooling_call import pooling_call
from twostroke.server.openai.embeddings.prompt_tokens import PromptEncoder
from twostroke.server.openai.embeddings.request import (
    EmbeddingRequest,
    PoolingRequest,
    VectorFields,
)
from twostroke.server.state.served_model import ServedModel
from twostroke.server.state.server_state import ServerState


def embeddings_router(state: ServerState) -> APIRouter:
    """The routes of embeddings and of pooled states."""
    router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
    embedded = answer_responses(EmbeddingList, "The embeddings.", has_body=True)
    pooled = answer_responses(PoolingList, "The pooled states.", has_body=True)

    @router.post("/v1/embeddings", response_class=Response, responses=embedded | ERROR_RESPONSES)
    async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
        """The embedding of a text, or of each of several, by the model's own pooling."""
        model = state.model_for_new_work(body.model)
        generation = await _begin(model, body, request, "embd")

        def listed(vectors: list[list[float] | str], num_tokens: int) -> EmbeddingList:
            return EmbeddingList(
                id=generation.request_id,
                created=int(time.time()),
                model=model.name,
                data=[Embedding(index=i, embedding=vector) for i, vector in enumerate(vectors)],
                usage=PromptUsage(num_tokens, num_tokens),
            )

        return await generation.respond(VectorFormat(_writer(body), listed), request)

    @router.post("/pooling", response_class=Response, responses=pooled | ERROR_RESPONSES)
    async def create_pooling(body: PoolingRequest, request: Request) -> Response:
        """Make embeddings, or a ranking model's scores, in the form of vLLM's ``/pooling``."""
        model = state.model_for_new_work(body.model)
        generation = await _begin(model, body, request, "pool")

        def listed(vectors: list[list[float] | str], num_tokens: int) -> PoolingList:
            return PoolingList(
                id=generation.request_id,
                created=int(time.time()),
                model=model.name,
                data=[PooledStates(index=i, data=vector) for i, vector in enumerate(vectors)],
                usage=PromptUsage(num_tokens, num_tokens),
            )

        return await generation.respond(VectorFormat(_writer(body), listed), request)

    return router


async def _begin(
    model: ServedModel,
    body: EmbeddingRequest | PoolingRequest,
    request: Request,
    prefix: str,
) -> Generation:
    model.check_name(body.model)
    body.check_shared_fields()
    specials = body.add_special_tokens is not False
    return await pooling_call(
        request,
        prefix,
        PromptEncoder(model, body.truncate_prompt_tokens, specials),
        body.inputs(),
        body.pooling_params(),
        ignored=body.dropped_fields(),
        make_requests=body.pooling_requests,
    )


def _writer(body: VectorFields) -> Callable[[bytes], list[float] | str]:
    return base64_of if body.is_base64 else unpack_vector
