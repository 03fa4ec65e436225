"""The documents and the budget of a chat, checked and given their ids."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, context_overflow
from twostroke.server.calls.call import Context, Rank
from twostroke.server.generation.encoding import MAX_CONTEXT_CHARS
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.chat_messages import num_chars
from twostroke.server.openai.chat_request import (
    ChatCompletionRequest,
    ContextFields,
    DocumentFields,
)
from twostroke.server.openai.ranking.document_ranking import choose_ranking
from twostroke.server.state.served_model import ServedModel
from twostroke.text.documents import Document


def context_ranking(
    model: ServedModel, body: ChatCompletionRequest, max_tokens: int | None
) -> Rank | None:
    """What ranks a chat's documents, once it is known that a prompt can be put together.

    Args:
        max_tokens: Limit of the answer.

    Raises:
        InvalidRequestError: It cannot, or a model is to rank, and there is none.
        RequestTooLargeError: The answer alone leaves no room for a prompt.
    """
    _check_fields(body)
    ranking = choose_ranking(model, None if body.context is None else body.context.ranker)
    max_total = model.client.info.longest_request
    if max_tokens is not None and max_tokens >= max_total:
        raise RequestTooLargeError(
            context_overflow(max_total, f"max_tokens is {max_tokens}"),
            needed=max_tokens + 1,
            available=max_total,
            param="max_tokens",
            hint=f"ask for fewer than {max_total}; the answer may also be shorter than that",
        )
    return ranking


def chat_context(body: ChatCompletionRequest, rank: Rank | None) -> Context:
    """How a chat's prompt is put together.

    Raises:
        InvalidRequestError: Two documents have one id.
    """
    fields = body.context or ContextFields.model_validate({})
    return Context(
        rank=rank,
        documents=_identified(body.documents or []),
        options=fields.options(),
        max_tokens=fields.max_tokens,
    )


def _check_fields(body: ChatCompletionRequest) -> None:
    """Refuse what cannot be put together."""
    documents = body.documents or []
    if body.truncate_prompt_tokens is not None:
        message = "truncate_prompt_tokens cuts blindly and excludes documents and context"
        raise InvalidRequestError(
            message, param="truncate_prompt_tokens", hint="use context.max_tokens"
        )
    if body.add_special_tokens:
        message = "add_special_tokens is not supported together with documents or context"
        raise InvalidRequestError(
            message, param="add_special_tokens", hint="leave it out; templates write BOS"
        )
    for i, document in enumerate(documents):
        check_unicode(f"documents[{i}].text", [document.text])
        check_unicode(f"documents[{i}].title", [document.title or ""])
        check_unicode(f"documents[{i}].id", [str(document.id)])
        if (document.score is None) != (documents[0].score is None):
            missing = i if document.score is None else 0
            message = f"documents[{missing}].score is missing, while other documents have one"
            raise InvalidRequestError(
                message, param=f"documents[{missing}].score", hint="score all or none"
            )
    size = num_chars(body.messages) + sum(
        len(document.text) + len(document.title or "") for document in documents
    )
    if size > MAX_CONTEXT_CHARS:
        message = (
            f"messages and documents hold {size} characters, at most {MAX_CONTEXT_CHARS} are"
            " put together"
        )
        raise InvalidRequestError(
            message, param="documents" if documents else "messages", hint="send fewer"
        )


def _identified(documents: Sequence[DocumentFields]) -> list[Document]:
    """Documents with ids: as given, else their place from 1, or the next number that is free.

    Raises:
        InvalidRequestError: Two were given the same id.
    """
    ids: set[str] = set()
    for i, document in enumerate(documents):
        if document.id is not None and str(document.id) in ids:
            message = f"documents[{i}].id is that of another document: {document.id!r}"
            raise InvalidRequestError(
                message, param=f"documents[{i}].id", hint="give each its own, or leave it out"
            )
        ids |= set() if document.id is None else {str(document.id)}
    identified = []
    for i, document in enumerate(documents):
        name = document.id
        if name is None:
            name = next(number for number in map(str, count(i + 1)) if number not in ids)
        ids.add(str(name))
        identified.append(
            Document(text=document.text, id=str(name), title=document.title, score=document.score)
        )
    return identified
