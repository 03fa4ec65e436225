"""What the routes of scores and rankings take: the request objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from annotated_types import MaxLen
from pydantic import Field

from twostroke.core.errors import InvalidRequestError
from twostroke.server.http.body_fields import FirstMistake, StrictModel, check_unicode
from twostroke.server.openai.embeddings.pooling_fields import MAX_INPUTS, PoolingFields
from twostroke.server.openai.field_limits import LIMITS, Texts

_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "use_activation": (True,),
    "activation": (True,),
    "max_chunks_per_doc": (),
    "max_tokens_per_doc": (),
}
MAX_INSTRUCTION = 10_000
ManyTexts = Annotated[Texts, MaxLen(MAX_INPUTS)]


class DocumentText(StrictModel):
    """A document as an object, as Jina and Cohere take it, too."""

    text: str


class RankingFields(PoolingFields):
    """What both routes take."""

    instruction: str | None = Field(
        None,
        description=(
            "What documents are wanted for, for models that judge by the tokens no and yes; others"
            " take none."
        ),
    )

    def checked_instruction(self) -> str | None:
        check_unicode("instruction", [self.instruction or ""])
        if len(self.instruction or "") > MAX_INSTRUCTION:
            raise InvalidRequestError(
                f"instruction has more than {MAX_INSTRUCTION} characters", param="instruction"
            )
        return self.instruction


class RerankRequest(RankingFields):
    """Body of ``POST /v1/rerank``, ``/v2/rerank`` and ``/rerank``."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {**_REFUSED, "rank_fields": ([],)}
    limits: ClassVar[Mapping[str, Mapping[str, Any]]] = {**LIMITS, "top_n": {"minimum": 0}}
    nested: ClassVar[tuple[str, ...]] = ("documents",)

    query: str
    documents: Annotated[list[str | DocumentText], MaxLen(MAX_INPUTS), FirstMistake()]
    top_n: int | None = Field(None, description="Return only this many of the best; 0: all.")
    return_documents: bool | None = Field(
        None, description="Return the documents' texts; true by default."
    )

    def texts(self) -> list[str]:
        """The documents' texts, checked."""
        texts = [item if isinstance(item, str) else item.text for item in self.documents]
        if not texts:
            raise InvalidRequestError(
                "documents is empty", param="documents", hint="send at least one"
            )
        check_unicode("query", [self.query])
        check_unicode("documents", texts)
        if self.top_n is not None and self.top_n < 0:
            raise InvalidRequestError("top_n must be 0 or more", param="top_n")
        return texts


class ScoreRequest(RankingFields):
    """Body of ``POST /v1/score`` and ``/score``: one or several texts on each side."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = _REFUSED

    text_1: str | ManyTexts | None = Field(None, description="Also called queries or data_1.")
    text_2: str | ManyTexts | None = Field(
        None,
        description=(
            "As many texts as on the other side, or any number to be compared with its single one."
            " Also called documents, items or data_2."
        ),
    )
    queries: str | ManyTexts | None = None
    documents: str | ManyTexts | None = None
    items: str | ManyTexts | None = None
    data_1: str | ManyTexts | None = None
    data_2: str | ManyTexts | None = None

    def sides(self) -> tuple[list[str], list[str]]:
        """The texts of both sides: equally many, or one on the first."""
        first = self._side("text_1", "queries", "data_1")
        second = self._side("text_2", "documents", "items", "data_2")
        if len(first) not in (1, len(second)):
            raise InvalidRequestError(
                f"text_1 holds {len(first)} texts and text_2 {len(second)}",
                param="text_2",
                hint="send one text_1, or as many as text_2",
            )
        return first, second

    def _side(self, *names: str) -> list[str]:
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            message = f"{names[0]} is missing" if not given else f"{' and '.join(given)} are there"
            raise InvalidRequestError(message, param=names[0], hint=f"send {names[0]}")
        value = getattr(self, given[0])
        texts: list[str] = [value] if isinstance(value, str) else value
        if not texts:
            raise InvalidRequestError(
                f"{given[0]} is empty", param=given[0], hint="send at least one"
            )
        check_unicode(given[0], texts)
        return texts
