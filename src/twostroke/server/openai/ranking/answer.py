"""The objects that scores and rankings are answered with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.pooling import cosine, unpack_vector
from twostroke.engine.answer import CollectedAnswer
from twostroke.server.generation.response_format import CallTokens
from twostroke.server.openai.embeddings.answer import PromptUsage, WholeAnswers, vector_of


class Score(Struct, kw_only=True):
    """How well one pair of texts fits together."""

    object: str = "score"
    index: int
    score: float


class ScoreList(Struct, kw_only=True):
    """The scores in the order of the pairs."""

    object: str = "list"
    id: str
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage


class RankedText(Struct):
    text: str


class RankedDocument(Struct, kw_only=True):
    """A document by its place in the request; its text unless ``return_documents`` is false."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class Ranking(Struct, kw_only=True):
    """The documents, the most relevant first; of equal ones the earlier first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage


@dataclass(frozen=True, slots=True)
class ScoreReader:
    """Scores from vectors.

    Attributes:
        num_first: With embeddings: this many of the vectors are those of the first side, the others
            of the second. ``None``: each vector is a ranking model's score of a pair.
    """

    num_first: int | None

    def scores(self, answers: Sequence[CollectedAnswer]) -> list[float]:
        vectors = [unpack_vector(vector_of(answer)) for answer in answers]
        if self.num_first is None:
            return [vector[0] for vector in vectors]
        first, second = vectors[: self.num_first], vectors[self.num_first :]
        if len(first) == 1:
            first *= len(second)
        return [cosine(one, other) for one, other in zip(first, second, strict=True)]


class ScoreFormat(WholeAnswers):
    """Implements ``ResponseFormat``."""

    def __init__(self, request_id: str, model: str, created: int, reader: ScoreReader) -> None:
        self._request_id, self._model, self._created = request_id, model, created
        self._reader = reader

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> ScoreList:
        return ScoreList(
            id=self._request_id,
            created=self._created,
            model=self._model,
            data=[
                Score(index=index, score=score)
                for index, score in enumerate(self._reader.scores(answers))
            ],
            usage=PromptUsage(tokens.prompt, tokens.prompt),
        )


class RankingFormat(WholeAnswers):
    """Implements ``ResponseFormat``.

    Args:
        texts: The documents, to be returned; ``None`` returns none.
        top_n: How many of the best are returned; 0 is all.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        reader: ScoreReader,
        texts: Sequence[str] | None,
        top_n: int,
    ) -> None:
        self._request_id, self._model, self._reader = request_id, model, reader
        self._texts, self._top_n = texts, top_n

    def complete(self, answers: Sequence[CollectedAnswer], tokens: CallTokens) -> Ranking:
        scores = self._reader.scores(answers)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        return Ranking(
            id=self._request_id,
            model=self._model,
            results=[
                RankedDocument(
                    index=index,
                    relevance_score=scores[index],
                    document=UNSET if self._texts is None else RankedText(self._texts[index]),
                )
                for index in order[: self._top_n or None]
            ],
            usage=PromptUsage(tokens.prompt, tokens.prompt),
        )
