"""What became of a chat's messages and documents when its prompt was put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Strategy = Literal["drop_oldest", "drop_middle", "drop_documents", "truncate_documents", "error"]


@dataclass(frozen=True, slots=True)
class DocumentUse:
    """What became of a document; all counts are tokens. ``kept_tokens`` is 0 if it was left out."""

    index: int
    id: str
    score: float | None
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """Where a prompt's tokens come from, and what is missing in it.

    All counts but those of turns are tokens. The kept ones (system, documents, history, last
    message, template) add up to ``prompt_tokens``.

    Attributes:
        max_tokens: How many the prompt might have had.
        template_tokens: What the chat template adds to the texts, less what it leaves out of them.
        ranker: Where the documents' scores come from (``given``, ``bm25``, or the name of a model);
            ``None`` where nothing was ranked.
        documents: One entry per document, in the order given.
    """

    strategy: Strategy
    max_tokens: int
    prompt_tokens: int
    system_tokens: int
    last_message_tokens: int
    kept_history_tokens: int
    dropped_history_tokens: int
    kept_turns: int
    dropped_turns: int
    ranker: str | None = None
    documents: list[DocumentUse] = field(default_factory=list)

    @property
    def kept_document_tokens(self) -> int:
        return sum(use.kept_tokens for use in self.documents)

    @property
    def cut_document_tokens(self) -> int:
        """Missing at the end of documents that are there."""
        return sum(use.tokens - use.kept_tokens for use in self.documents if use.kept_tokens)

    @property
    def dropped_document_tokens(self) -> int:
        return sum(use.tokens for use in self.documents if not use.kept_tokens)

    @property
    def template_tokens(self) -> int:
        texts = (
            self.system_tokens
            + self.last_message_tokens
            + self.kept_history_tokens
            + self.kept_document_tokens
        )
        return self.prompt_tokens - texts
