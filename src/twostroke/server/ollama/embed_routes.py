"""``POST /api/embed``, and ``POST /api/embeddings``, its older form for a single text."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from fastapi import APIRouter, Request
from msgspec import Struct
from pydantic import Field
from starlette.responses import Response

from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.gateway.caller import caller_of
from twostroke.server.http.api_document import answer_responses
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.http.ignored_header import ignored_header
from twostroke.server.http.json_response import json_response
from twostroke.server.ollama.documented import OLLAMA_ERRORS
from twostroke.server.ollama.generation_fields import KEEP_ALIVE, MODEL
from twostroke.server.ollama.names import known_name
from twostroke.server.ollama.option_fields import OllamaFields
from twostroke.server.ollama.route import OllamaRoute
from twostroke.server.openai.embeddings.answer import VectorFormat
from twostroke.server.openai.embeddings.pooling_call import pooling_call
from twostroke.server.openai.embeddings.pooling_fields import MAX_INPUTS
from twostroke.server.openai.embeddings.prompt_tokens import PromptEncoder
from twostroke.server.openai.field_limits import Texts
from twostroke.server.state.server_state import ServerState

_IGNORED: Mapping[str, str] = {**KEEP_ALIVE, "options": "nothing is drawn, and the model is loaded"}


class EmbedRequest(OllamaFields):
    """Body of ``POST /api/embed``."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = _IGNORED
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {"dimensions": {"minimum": 1}}

    model: str | None = Field(None, description=MODEL)
    input: str | Annotated[Texts, MaxLen(MAX_INPUTS)] | None = Field(
        None, description="A text or several; without any there is no embedding."
    )
    truncate: bool | None = Field(
        None, description="True: cut what is too long at its end. By default that is an error."
    )
    dimensions: int | None = Field(
        None, description="Keep this many elements of each embedding and normalise it again."
    )

    def texts(self) -> list[str]:
        """The texts, one for each embedding."""
        if not self.input:
            return []
        texts = [self.input] if isinstance(self.input, str) else self.input
        check_unicode("input", texts)
        return texts


class EmbeddingsRequest(OllamaFields):
    """Body of ``POST /api/embeddings``."""

    is_body: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = _IGNORED

    model: str | None = Field(None, description=MODEL)
    prompt: str | None = Field(None, description="A text.")


class OllamaEmbeddings(Struct, kw_only=True):
    """Embeddings of length 1, in the order of the inputs; durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class OllamaEmbedding(Struct):
    """The embedding of a text, as the model's own pooling has it."""

    embedding: list[float]


def ollama_embed_router(state: ServerState) -> APIRouter:
    """The routes of embeddings."""
    router = APIRouter(route_class=OllamaRoute)
    many = answer_responses(OllamaEmbeddings, "The embeddings.", has_body=True)
    one = answer_responses(OllamaEmbedding, "The embedding.", has_body=True)

    @router.post("/api/embed", response_class=Response, responses=many | OLLAMA_ERRORS)
    async def ollama_embed(body: EmbedRequest, request: Request) -> Response:
        """The embedding of a text, or of each of several."""
        model = state.model_for_new_work(body.model)
        name, texts = known_name(model, body.model), body.texts()
        ignored = body.dropped_fields()
        if not texts:
            return json_response(
                OllamaEmbeddings(model=name, embeddings=[]), ignored_header(ignored)
            )
        arrived = caller_of(request.scope).arrived or time.monotonic()

        def listed(vectors: list[list[float]], num_tokens: int) -> OllamaEmbeddings:
            return OllamaEmbeddings(
                model=name,
                embeddings=vectors,
                total_duration=round((time.monotonic() - arrived) * 1e9),
                prompt_eval_count=num_tokens,
            )

        encoder = PromptEncoder(model, -1 if body.truncate else None)
        params = PoolingParams(dimensions=body.dimensions, normalise=True)
        generation = await pooling_call(request, "embd", encoder, texts, params, ignored=ignored)
        return await generation.respond(VectorFormat(unpack_vector, listed), request)

    @router.post("/api/embeddings", response_class=Response, responses=one | OLLAMA_ERRORS)
    async def ollama_embeddings(body: EmbeddingsRequest, request: Request) -> Response:
        """The embedding of a text, in the older form."""
        model = state.model_for_new_work(body.model)
        known_name(model, body.model)
        ignored = body.dropped_fields()
        if not body.prompt:
            return json_response(OllamaEmbedding([]), ignored_header(ignored))
        check_unicode("prompt", [body.prompt])

        def single(vectors: list[list[float]], _: int) -> OllamaEmbedding:
            return OllamaEmbedding(vectors[0])

        generation = await pooling_call(
            request,
            "embd",
            PromptEncoder(model, None),
            [body.prompt],
            PoolingParams(),
            field="prompt",
            ignored=ignored,
        )
        return await generation.respond(VectorFormat(unpack_vector, single), request)

    return router
