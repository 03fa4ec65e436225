"""What a chat's prompt can be made of: its messages and documents, counted, and their order."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from twostroke.text.chat_encoder import ChatEncoder
from twostroke.text.context_report import ContextReport, DocumentUse, Strategy
from twostroke.text.documents import (
    Document,
    bm25_scores,
    content_words,
    without_special_tokens,
)

DocumentOrder = Literal["given", "score"]
# Where scores come from, as reports say it.
GIVEN, BM25 = "given", "bm25"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOptions:
    """How a prompt is made to fit.

    Attributes:
        strategy: What is removed first. ``drop_oldest``: turns from the oldest on, then documents
            from the lowest score up. ``drop_middle``: turns from the middle outwards, then
            documents. ``drop_documents``: documents, then the oldest turns.
            ``truncate_documents``: the same, but the last document to be removed is shortened if
            that suffices. ``error``: nothing; what does not fit is refused.
        document_order: Documents come as they were given, or best first.
        min_score: Documents with a lower score have no relevance; by default those with 0.
    """

    strategy: Strategy = "drop_oldest"
    document_order: DocumentOrder = "given"
    min_score: float | None = None


class RankingTask(NamedTuple):
    """What is to be ranked: texts by how well they fit a question."""

    question: str
    texts: list[str]


@dataclass(frozen=True, slots=True)
class ContextPiece:
    """What is kept or removed as a whole."""

    kind: Literal["turn", "document"]
    index: int
    tokens: int


class ContextChoice(NamedTuple):
    """The turns and documents in a prompt; a document may be a shortened one."""

    turns: tuple[int, ...]
    documents: tuple[tuple[int, Document], ...]


class ContextMaterial:
    """A conversation and its documents, counted, and the prompts that can be made of them."""

    def __init__(
        self,
        encoder: ChatEncoder,
        chat: list[dict[str, Any]],
        documents: Sequence[Document],
        options: ContextOptions,
        rendering: Mapping[str, Any],
    ) -> None:
        self.tokenizer = tokenizer = encoder.tokenizer
        self.options = options
        texts = [text for d in documents for text in (d.title, d.text, d.id) if text]
        halves = encoder.special_texts.halves(texts)
        self.documents = without_special_tokens(
            documents, lambda text: encoder.broken_text(text, " ", halves)
        )
        self._encoder = encoder
        self._rendering = rendering
        self._chat = chat
        roles = [message["role"] for message in chat]
        self._last = max(
            (i for i, role in enumerate(roles) if role == "user"), default=len(chat) - 1
        )
        self._system, self._turns = _turns(roles[: self._last])
        self._counts = tokenizer.count([message["content"] for message in chat])
        self._document_counts = tokenizer.count([document.written() for document in self.documents])
        self._scores = [document.score for document in documents]
        self._ranker = GIVEN if documents and self.is_scored else None
        self._offered: Sequence[int] = range(len(documents))

    def turn(self, index: int) -> ContextPiece:
        return ContextPiece("turn", index, sum(self._counts[i] for i in self._turns[index]))

    def document(self, index: int) -> ContextPiece:
        return ContextPiece("document", index, self._document_counts[index])

    def everything(self) -> ContextChoice:
        return self.without(())

    def without(self, pieces: Sequence[ContextPiece]) -> ContextChoice:
        """All but ``pieces``, in the order in which they come in the prompt."""
        removed = {(piece.kind, piece.index) for piece in pieces}
        turns = tuple(i for i in range(len(self._turns)) if ("turn", i) not in removed)
        documents = [i for i in self._offered if ("document", i) not in removed]
        if self.options.document_order == "score":
            documents.sort(key=self._from_best)
        return ContextChoice(turns, tuple((i, self.documents[i]) for i in documents))

    def prompt(self, choice: ContextChoice) -> list[int]:
        """Token ids; the template writes its own special tokens."""
        kept = {i for turn in choice.turns for i in self._turns[turn]} | set(self._system)
        chat = [m for i, m in enumerate(self._chat) if i in kept or i >= self._last]
        documents = [document for _, document in choice.documents]
        return self._encoder.encode(chat, documents, **self._rendering)

    def estimate_frame(self, num_minimal: int) -> float:
        """Tokens that the template adds per message of the latest turn; 0 without history.

        Args:
            num_minimal: Tokens of the prompt without any turn.
        """
        if not self._turns:
            return 0.0
        latest = len(self._turns) - 1
        num_with_latest = len(self.prompt(ContextChoice((latest,), ())))
        return (num_with_latest - num_minimal - self.turn(latest).tokens) / len(self._turns[latest])

    def messages_in(self, turn: int) -> int:
        return len(self._turns[turn])

    @property
    def is_scored(self) -> bool:
        """Whether each document has a score."""
        return all(score is not None for score in self._scores)

    def ranking_task(self) -> RankingTask:
        """The last message's text, and those of the documents."""
        texts = [f"{document.title or ''}\n{document.text}" for document in self.documents]
        return RankingTask(self._chat[self._last]["content"], texts)

    def take_scores(self, scores: Sequence[float | None], ranker: str) -> None:
        """Go by these from here on."""
        assert len(scores) == len(self.documents)
        self._scores, self._ranker = list(scores), ranker

    def rank(self) -> None:
        """Score the documents by BM25 unless all of them have a score.

        A question of stop words alone ("Why is that?") ranks nothing: there is no score then.
        """
        if self.is_scored:
            return
        question, texts = self.ranking_task()
        if content_words(question):
            self.take_scores(bm25_scores(question, texts), BM25)
        else:
            self._scores = [None] * len(texts)

    def irrelevant_documents(self) -> list[ContextPiece]:
        """Documents below ``min_score``, or with a score of 0: they are removed first.

        On a scale that goes below 0, a score of 0 says no such thing.
        """
        self.rank()
        scores = {i: score for i, score in enumerate(self._scores) if score is not None}
        lowest = self.options.min_score
        if lowest is not None:
            irrelevant = {i for i, score in scores.items() if score < lowest}
        elif min(scores.values(), default=0) < 0:
            irrelevant = set()
        else:
            irrelevant = {i for i, score in scores.items() if score == 0}
        return [self.document(i) for i in self._offered if i in irrelevant]

    def without_irrelevant_documents(self) -> ContextMaterial:
        """A copy that offers only the relevant documents."""
        relevant = copy.copy(self)
        irrelevant = {piece.index for piece in self.irrelevant_documents()}
        relevant._offered = [i for i in self._offered if i not in irrelevant]
        return relevant

    def removal_order(self) -> list[ContextPiece]:
        """Every turn and document; the first one is the first to be removed."""
        self.rank()
        documents = [
            self.document(i) for i in sorted(self._offered, key=self._from_best, reverse=True)
        ]
        turns = [self.turn(i) for i in range(len(self._turns))]
        if self.options.strategy == "drop_middle":
            middle = (len(turns) - 1) / 2
            turns.sort(key=lambda turn: (abs(turn.index - middle), turn.index))
        turns_first = self.options.strategy in ("drop_oldest", "drop_middle")
        return turns + documents if turns_first else documents + turns

    def report(self, choice: ContextChoice, prompt_tokens: int, budget: int) -> ContextReport:
        kept = dict(choice.documents)
        counts = {i: self._document_counts[i] for i in kept}
        cut = [i for i, document in kept.items() if document is not self.documents[i]]
        counts |= zip(cut, self.tokenizer.count([kept[i].written() for i in cut]), strict=True)
        turns = [self.turn(i).tokens for i in range(len(self._turns))]
        kept_turns = sum(turns[i] for i in choice.turns)
        return ContextReport(
            strategy=self.options.strategy,
            max_tokens=budget,
            prompt_tokens=prompt_tokens,
            system_tokens=sum(self._counts[i] for i in self._system),
            last_message_tokens=sum(self._counts[self._last :]),
            kept_history_tokens=kept_turns,
            dropped_history_tokens=sum(turns) - kept_turns,
            kept_turns=len(choice.turns),
            dropped_turns=len(turns) - len(choice.turns),
            ranker=self._ranker,
            documents=[
                DocumentUse(i, d.id, self._scores[i], self._document_counts[i], counts.get(i, 0))
                for i, d in enumerate(self.documents)
            ],
        )

    def _from_best(self, index: int) -> tuple[float, int]:
        """Sorts best first; of equals, the one given first."""
        return -(self._scores[index] or 0.0), index


def _turns(roles: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """The positions of system messages, and those of each turn's messages."""
    system: list[int] = []
    turns: list[list[int]] = []
    for i, role in enumerate(roles):
        if role in ("system", "developer"):
            system.append(i)
        elif role == "user" or not turns:
            turns.append([i])
        else:
            turns[-1].append(i)
    return system, turns
