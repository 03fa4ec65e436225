"""Vectors and scores as ``LLM`` returns them, in the form of vLLM's."""

from __future__ import annotations

from dataclasses import dataclass

from twostroke.core.pooling import unpack_vector
from twostroke.engine.answer import CollectedAnswer


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """One prompt's embedding."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """A prompt and its embedding."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well a pair of texts fits together."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringResult:
    """A pair of texts, its tokens, and its score."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: ScoringOutput
    finished: bool = True


def vector_or_raise(answer: CollectedAnswer) -> list[float]:
    """The vector of an answer that has ended; raises why there is none."""
    if answer.error is not None:
        raise answer.error
    assert answer.vector is not None
    return unpack_vector(answer.vector)
