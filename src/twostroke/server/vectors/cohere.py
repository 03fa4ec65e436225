"""``POST /v2/embed`` of Cohere, as vLLM serves it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MaxLen
from fastapi import APIRouter, Request
from msgspec import UNSET, Struct, UnsetType, field
from pydantic import Field
from starlette.responses import Response

from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import PoolingAbility, PoolingParams, unpack_vector
from twostroke.server.http.api_document import answer_responses, errors_shaped
from twostroke.server.http.body_fields import FirstMistake, StrictModel, check_unicode
from twostroke.server.http.body_json import StrictRoute
from twostroke.server.openai.embeddings.answer import VectorFormat, base64_of
from twostroke.server.openai.embeddings.pooling_call import pooling_call
from twostroke.server.openai.embeddings.pooling_fields import MAX_INPUTS
from twostroke.server.openai.embeddings.prompt_tokens import PromptEncoder
from twostroke.server.openai.field_limits import Texts
from twostroke.server.plain_shapes import COHERE_PATH, CohereError
from twostroke.server.state.server_state import ServerState
from twostroke.server.vectors.prompts import prompt_before

EmbeddingType = Literal["float", "base64", "binary", "ubinary"]
# What checkpoints call the prompts of Cohere's types, beside the same names.
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
}


class CohereEmbedRequest(StrictModel):
    """Body of ``POST /v2/embed``."""

    is_body: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {"images": ([],), "inputs": ([],)}
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "output_dimension": {"minimum": 1},
        "max_tokens": {"minimum": 1},
    }

    model: str | None = Field(
        None, description="A name that /v1/models lists; by default the only one."
    )
    texts: Annotated[Texts, MaxLen(MAX_INPUTS)]
    input_type: str | None = Field(
        None,
        max_length=100,
        description=(
            "The prompt of the checkpoint's that goes before each text; ignored where it has none."
        ),
    )
    embedding_types: Annotated[list[EmbeddingType], MaxLen(16), FirstMistake()] | None = Field(
        None,
        description=(
            "By default float. base64: little-endian float32; binary and ubinary: a bit for each"
            " element, eight to a number, 0 where it is negative."
        ),
    )
    output_dimension: int | None = Field(
        None, description="Keep this many elements of each embedding and normalise it again."
    )
    truncate: Literal["NONE", "END"] | None = Field(
        None, description="By default END: cut what is too long; NONE: that is an error."
    )
    max_tokens: int | None = Field(
        None, description="Cut each text to this many tokens; not with truncate NONE."
    )

    def prefixed(self, ability: PoolingAbility) -> list[str]:
        """The texts, with the prompt of their type."""
        if not self.texts:
            raise InvalidRequestError("texts is empty", param="texts", hint="send at least one")
        check_unicode("texts", self.texts)
        if self.input_type is None or not ability.prompts:
            return self.texts
        names = (self.input_type, *_OTHER_NAMES.get(self.input_type, ()))
        before = prompt_before(ability, names, "input_type")
        return [before + text for text in self.texts]

    def most_tokens(self, context: int) -> int | None:
        """Tokens to which texts are cut; ``None``: they are not."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
        if self.truncate == "NONE":
            if self.max_tokens is not None:
                raise InvalidRequestError(
                    "max_tokens does not go with truncate NONE",
                    param="max_tokens",
                    hint="leave one of them out",
                )
            return None
        return min(context, self.max_tokens or context)


class CohereVectors(Struct, omit_defaults=True):
    """The vectors in each form that was asked for, in the order of the texts."""

    float_: list[list[float]] | UnsetType = field(default=UNSET, name="float")
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereApiVersion(Struct):
    version: str = "2"


class CohereTokens(Struct):
    input_tokens: int


class CohereMeta(Struct):
    tokens: CohereTokens
    api_version: CohereApiVersion


class CohereEmbeddings(Struct, kw_only=True):
    """What Cohere's API calls embeddings by type."""

    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"


def cohere_router(state: ServerState) -> APIRouter:
    """The route of embeddings."""
    router = APIRouter(route_class=StrictRoute, tags=["embeddings"])
    responses = answer_responses(CohereEmbeddings, "The embeddings.", has_body=True)

    @router.post(
        COHERE_PATH, response_class=Response, responses=responses | errors_shaped(CohereError)
    )
    async def cohere_embed(body: CohereEmbedRequest, request: Request) -> Response:
        """The embedding of each text, in each of the forms that are asked for."""
        model = state.model_for_new_work(body.model)
        model.check_name(body.model)
        info = model.client.info
        ignored = body.dropped_fields()
        if body.input_type is not None and not info.pooling.prompts:
            ignored.append("input_type")
        types = dict.fromkeys(body.embedding_types or ("float",))
        _check_types(types, body.output_dimension or info.pooling.size)
        generation = await pooling_call(
            request,
            "embd",
            PromptEncoder(model, body.most_tokens(info.max_model_len)),
            body.prefixed(info.pooling),
            PoolingParams(dimensions=body.output_dimension),
            field="texts",
            ignored=ignored,
        )

        def listed(vectors: list[bytes], num_tokens: int) -> CohereEmbeddings:
            forms = {_FIELDS[name]: [_WRITERS[name](v) for v in vectors] for name in types}
            return CohereEmbeddings(
                id=generation.request_id,
                embeddings=CohereVectors(**forms),
                texts=body.texts,
                meta=CohereMeta(CohereTokens(num_tokens), CohereApiVersion()),
            )

        return await generation.respond(VectorFormat(bytes, listed), request)

    return router


def _check_types(types: Collection[str], size: int) -> None:
    if size % 8 and ("binary" in types or "ubinary" in types):
        raise InvalidRequestError(
            f"embeddings of {size} elements cannot be packed into whole bytes",
            param="embedding_types",
            hint="send an output_dimension that is a multiple of 8, or take float",
        )


def _packed_bits(vector: bytes) -> bytes:
    """A bit for each element, 0 under a minus sign; the first is the highest of its byte."""
    digits = vector[3::4].translate(_DIGITS)  # the bytes with the signs
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


def _unsigned_bits(vector: bytes) -> list[int]:
    return list(_packed_bits(vector))


def _signed_bits(vector: bytes) -> list[int]:
    """The packed bits as signed bytes: 128 less than the unsigned ones."""
    return memoryview(_packed_bits(vector).translate(_SHIFTED)).cast("b").tolist()


_DIGITS = bytes(b"1" * 128 + b"0" * 128)
_SHIFTED = bytes(value ^ 128 for value in range(256))
_FIELDS = {"float": "float_", "base64": "base64", "binary": "binary", "ubinary": "ubinary"}
_WRITERS: Mapping[str, Callable[[bytes], Any]] = {
    "float": unpack_vector,
    "base64": base64_of,
    "binary": _signed_bits,
    "ubinary": _unsigned_bits,
}
