"""The objects that ``/v1/embeddings`` and ``/pooling`` answer with, from the engine's answers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from twostroke.core.output import RequestOutput
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens

T = TypeVar("T")


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


class PooledStates(Struct, kw_only=True):
    """One input's vector, as of ``Embedding``; a score is one number."""

    index: int
    object: str = "pooling"
    data: list[float] | str


class PoolingList(Struct, kw_only=True):
    """The vectors in the order of the inputs."""

    object: str = "list"
    id: str
    created: int
    model: str
    data: list[PooledStates]
    usage: PromptUsage


class WholeAnswers:
    """The part of ``ResponseFormat`` that answers without a stream have no use for."""

    def chunk(
        self, choice: int, output: RequestOutput, tokens: CallTokens, *, first: bool, last: bool
    ) -> bytes:
        raise AssertionError("vectors are not streamed")

    def failure(self, error: Exception) -> bytes:
        raise AssertionError("vectors are not streamed")


class VectorFormat(WholeAnswers, Generic[T]):
    """Implements ``ResponseFormat`` for vectors in any dialect.

    Args:
        write: One packed vector, as the answer has it.
        make: The answer, of all vectors in order and the number of prompt tokens.
    """

    def __init__(self, write: Callable[[bytes], T], make: Callable[[list[T], int], object]) -> None:
        self._write, self._make = write, make

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> object:
        return self._make([self._write(vector_of(answer)) for answer in answers], tokens.prompt)


def base64_of(vector: bytes) -> str:
    """A packed vector in base64."""
    return base64.b64encode(vector).decode()


def vector_of(answer: CollectedAnswer) -> bytes:
    """The packed vector of an answer that has ended."""
    assert answer.vector is not None
    return answer.vector
