"""Chats that bring documents or a budget: their prompt is put together so that it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.server.generation.encoding import MAX_CONTEXT_CHARS
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.chat_messages import num_chars, template_messages, turn_options
from twostroke.server.openai.chat_request import (
    ChatCompletionRequest,
    ContextFields,
    DocumentFields,
)
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context import Assembly, assemble
from twostroke.text.context_material import ContextOptions
from twostroke.text.documents import Document


async def assemble_chat(
    model: ServedModel, body: ChatCompletionRequest, max_tokens: int | None
) -> Assembly:
    """The prompt of a chat with documents or a budget, put together on a thread.

    Args:
        max_tokens: Of the answer. Without it, a quarter of the context stays free for the answer
            where that is possible.

    Raises:
        RequestTooLargeError: What must not be cut does not fit, or the answer alone leaves no room.
        InvalidRequestError: Two documents have one id.
    """
    check_context(body)
    info = model.client.info
    fields = body.context or ContextFields.model_validate({})
    # A KV cache that holds less than the model's context bounds a request, too.
    max_total = min(info.max_model_len, info.num_blocks * info.block_size)
    if max_tokens is not None and max_tokens >= max_total:
        raise RequestTooLargeError(
            f"max_tokens is {max_tokens}, but prompt and answer together may have {max_total}"
            " tokens",
            needed=max_tokens + 1,
            available=max_total,
            param="max_tokens",
            hint=f"ask for fewer than {max_total}; the answer may also be shorter than that",
        )
    hard_limit = max_total - (max_tokens or 1)
    soft_limit = hard_limit if max_tokens is not None else max_total - max_total // 4
    if fields.max_tokens is not None:
        hard_limit = min(hard_limit, fields.max_tokens)
        soft_limit = min(soft_limit, fields.max_tokens)
    return await asyncio.to_thread(
        assemble,
        model.chat_template,
        model.client.tokenizer,
        template_messages(body.messages),
        identify_documents(body.documents or []),
        ContextOptions(
            strategy=fields.strategy or "drop_oldest",
            document_order=fields.document_order or "given",
        ),
        hard_limit=hard_limit,
        soft_limit=soft_limit,
        **turn_options(body.add_generation_prompt, body.continue_final_message),
    )


def identify_documents(documents: Sequence[DocumentFields]) -> list[Document]:
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
        name, number = document.id, i + 1
        while name is None:
            name = None if str(number) in ids else str(number)
            number += 1
        ids.add(str(name))
        identified.append(
            Document(text=document.text, id=str(name), title=document.title, score=document.score)
        )
    return identified


def check_context(body: ChatCompletionRequest) -> None:
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
