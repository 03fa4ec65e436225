"""The objects that ``/v1/embeddings`` answers with, made of the engine's answers."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from msgspec import Struct

from twostroke.core.output import RequestOutput
from twostroke.core.pooling import unpack_vector
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens


class PromptUsage(Struct):
    """Tokens of the prompts, over all of them; nothing is drawn."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, kw_only=True):
    """One input's embedding: numbers, or their little-endian float32 bytes in base64."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, kw_only=True):
    """The embeddings in the order of the inputs."""

    object: str = "list"
    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: PromptUsage


class WholeAnswers:
    """The part of ``ResponseFormat`` that answers without a stream have no use for."""

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        raise AssertionError("vectors are not streamed")

    def failure(self, error: Exception) -> bytes:
        raise AssertionError("vectors are not streamed")


class EmbeddingFormat(WholeAnswers):
    """Implements ``ResponseFormat``.

    Args:
        created: Unix time.
        base64_encoded: Vectors as base64.
    """

    def __init__(self, request_id: str, model: str, created: int, *, base64_encoded: bool) -> None:
        self._request_id, self._model, self._created = request_id, model, created
        self._base64 = base64_encoded

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> EmbeddingList:
        return EmbeddingList(
            id=self._request_id,
            created=self._created,
            model=self._model,
            data=[
                Embedding(index=index, embedding=self._written(vector_of(answer)))
                for index, answer in enumerate(answers)
            ],
            usage=PromptUsage(tokens.prompt, tokens.prompt),
        )

    def _written(self, vector: bytes) -> list[float] | str:
        return base64.b64encode(vector).decode() if self._base64 else unpack_vector(vector)


def vector_of(answer: CollectedAnswer) -> bytes:
    """The packed vector of an answer that has ended."""
    assert answer.vector is not None
    return answer.vector
