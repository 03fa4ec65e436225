"""Documents that come with a chat: written into its prompt, and ranked by its question."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twostroke.text.chat_template import ChatTemplate

HEADING = "Documents:"
# Thai, Lao, Japanese and Chinese have no spaces between words: each character counts as a word.
_SPACELESS = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_SPACELESS}]|[^\\W{_SPACELESS}]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Something retrieved for the model to read.

    Attributes:
        id: Its name in the prompt and in the report.
        score: How well it fits the question, on any scale; more is better.
    """

    text: str
    id: str
    title: str | None = None
    score: float | None = None

    def written(self) -> str:
        """The document as text, for a template that does not write documents."""
        return (
            f"[{self.id}] {self.title}\n{self.text}" if self.title else f"[{self.id}]\n{self.text}"
        )

    def variables(self) -> dict[str, str]:
        """The document as the variables of templates that write documents themselves."""
        return {
            "doc_id": self.id,
            **({"title": self.title} if self.title else {}),
            "text": self.text,
        }


def without_special_tokens(
    documents: Iterable[Document], plain: Callable[[str], str]
) -> list[Document]:
    """The documents with a space inside each special token, which thereby is plain text.

    Retrieved text is not trusted: a page that spells out ``<|im_end|>`` must not end the turn that
    it is in.

    Args:
        plain: Puts the spaces into a text.
    """
    return [
        replace(d, text=plain(d.text), id=plain(d.id), title=d.title and plain(d.title))
        for d in documents
    ]


def render_with_documents(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    documents: Sequence[Document],
    **options: Any,
) -> str:
    """The prompt text: documents where the template writes them, else after the system prompt.

    A template that takes no system message gets them before the first user message.

    Args:
        messages: Checked ones, whose content is a string.
        options: Further arguments of ``ChatTemplate.render``.
    """
    if not documents:
        return template.render(messages, **options)
    if template.writes_documents:
        return template.render(
            messages, documents=[document.variables() for document in documents], **options
        )
    block = "\n\n".join([HEADING, *(document.written() for document in documents)])
    return template.render(_with_block(messages, block, template.writes_system), **options)


def _with_block(
    messages: Sequence[Mapping[str, Any]], block: str, writes_system: bool
) -> list[dict[str, Any]]:
    chat = [dict(message) for message in messages]
    roles = [message["role"] for message in chat]
    leading = next(
        (i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles)
    )
    if leading:
        chat[leading - 1]["content"] += f"\n\n{block}"
    elif writes_system or "user" not in roles:
        chat.insert(0, {"role": "system", "content": block})
    else:
        first = chat[roles.index("user")]
        first["content"] = f"{block}\n\n{first['content']}"
    return chat


def content_words(question: str) -> set[str]:
    """The words of a question that say what it is about: all but its language's stop words.

    The language is that of whose stop words the question has most, else English. Stop words of
    several languages at once would take words of the question: German "die" is an English verb.
    """
    words = set(_words(question))
    if not words:
        return words
    stopwords = _bm25s().stopwords
    other_languages = (
        stopwords.STOPWORDS_DANISH,
        stopwords.STOPWORDS_DUTCH,
        stopwords.STOPWORDS_FRENCH,
        stopwords.STOPWORDS_GERMAN,
        stopwords.STOPWORDS_ITALIAN,
        stopwords.STOPWORDS_NORWEGIAN,
        stopwords.STOPWORDS_PORTUGUESE,
        stopwords.STOPWORDS_RUSSIAN,
        stopwords.STOPWORDS_SPANISH,
        stopwords.STOPWORDS_SWEDISH,
        stopwords.STOPWORDS_TURKISH,
    )
    languages = (stopwords.STOPWORDS_EN_PLUS, *other_languages)  # of equals, max takes the first
    return words - max((words & set(language) for language in languages), key=len)


def bm25_scores(question: str, texts: Sequence[str]) -> list[float]:
    """How well each text fits the question, by BM25 (k1 1.5, b 0.75).

    A text that shares no content word with the question scores 0.

    Source: Robertson et al., Okapi at TREC-3 (1994), in Lucene's variant, as computed by the
    library ``bm25s``.
    """
    question_words = content_words(question)
    # All other words count for a text's length alone, so "" stands for each of them.
    words = [[word if word in question_words else "" for word in _words(text)] for text in texts]
    shared = sorted(question_words & set().union(*words))
    if not shared:
        return [0.0] * len(texts)
    index = _bm25s().BM25()
    index.index(words, show_progress=False)
    return [float(score) for score in index.get_scores(shared)]


def _bm25s() -> Any:
    import bm25s  # here, since it costs 0.1 s

    # The library sets its logger to DEBUG when it is imported.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
