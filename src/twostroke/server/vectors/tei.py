"""``POST /embed`` of Hugging Face's text-embeddings-inference (TEI)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import PoolingParams, unpack_vector
from twostroke.server.http.api_document import Responses, errors_shaped, with_ignored
from twostroke.server.http.body_fields import StrictModel, check_unicode
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.embeddings.answer import VectorFormat
from twostroke.server.openai.embeddings.pooling_call import pooling_call
from twostroke.server.openai.embeddings.pooling_fields import MAX_INPUTS
from twostroke.server.openai.embeddings.prompt_tokens import PromptEncoder
from twostroke.server.openai.field_limits import Texts
from twostroke.server.plain_shapes import TEI_PATH, TeiError
from twostroke.server.state.server_state import ServerState
from twostroke.server.vectors.prompts import prompt_before

_VECTORS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}


class TeiEmbedRequest(StrictModel):
    """Body of ``POST /embed``."""

    is_body: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "truncation_direction": ("Right", "right"),
    }
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {"dimensions": {"minimum": 1}}

    inputs: str | Annotated[Texts, MaxLen(MAX_INPUTS)] = Field(description="A text or several.")
    truncate: bool | None = Field(
        None, description="True: cut what is too long at its end. By default that is an error."
    )
    normalize: bool | None = Field(
        None, description="Whether vectors have length 1; true by default."
    )
    prompt_name: str | None = Field(
        None, description="The prompt of the checkpoint's that goes before each text."
    )
    dimensions: int | None = Field(None, description="Keep this many elements of each embedding.")

    def texts(self) -> list[str]:
        """The texts, one for each vector."""
        texts = [self.inputs] if isinstance(self.inputs, str) else self.inputs
        if not texts:
            raise InvalidRequestError("inputs is empty", param="inputs", hint="send at least one")
        check_unicode("inputs", texts)
        return texts


def tei_router(state: ServerState) -> APIRouter:
    """The route of embeddings."""
    router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
    vectors: dict[str, Any] = {
        "description": "A vector for each text, in order.",
        "content": {"application/json": {"schema": _VECTORS}},
    }
    responses: Responses = {200: with_ignored(vectors), **errors_shaped(TeiError)}

    @router.post(TEI_PATH, response_class=Response, responses=responses)
    async def tei_embed(body: TeiEmbedRequest, request: Request) -> Response:
        """The embedding of each text, as bare lists of numbers."""
        model = state.model_for_new_work()
        if model.client.info.pooling.reason[0]:  # this API names no model: take one that embeds
            able = (each for each in model.beside if not each.client.info.pooling.reason[0])
            model = next(able, model)
        texts = body.texts()
        if body.prompt_name is not None:
            ability = model.client.info.pooling
            before = prompt_before(ability, [body.prompt_name], "prompt_name")
            texts = [before + text for text in texts]
        generation = await pooling_call(
            request,
            "embd",
            PromptEncoder(model, -1 if body.truncate else None),
            texts,
            PoolingParams(dimensions=body.dimensions, normalise=body.normalize is not False),
            field="inputs",
            ignored=body.dropped_fields(),
        )
        return await generation.respond(VectorFormat(unpack_vector, _bare), request)

    return router


def _bare(vectors: list[list[float]], _: int) -> list[list[float]]:
    return vectors
