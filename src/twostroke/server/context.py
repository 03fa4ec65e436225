"""Chats that bring documents or a budget: from the request's fields to a prompt that fits, and what
was left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.server.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    ContextFields,
    DocumentFields,
    check_unicode,
)
from twostroke.server.responses import (
    ContextDocument,
    ContextUsage,
    CutTokens,
    DroppedTokens,
    KeptTokens,
    TurnCounts,
)
from twostroke.server.serving import ServedModel
from twostroke.text.context import Assembly, ContextOptions, assemble
from twostroke.text.context_report import ContextReport
from twostroke.text.documents import Document


def checked_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as templates take them; lone surrogates are refused."""
    for i, message in enumerate(messages):
        content, where = message.content, f"messages[{i}].content"
        check_unicode(
            where, [content] if isinstance(content, str) else [part.text for part in content]
        )
    return [message.model_dump(exclude_none=True) for message in messages]


def rendering_options(
    add_generation_prompt: bool | None, continue_final_message: bool | None
) -> dict[str, Any]:
    """For ``ChatTemplate.render``: the assistant's turn is opened unless the last message is to go
    on.
    """
    continued = bool(continue_final_message)
    opened = not continued if add_generation_prompt is None else add_generation_prompt
    return {"add_generation_prompt": opened, "continue_final_message": continued}


async def assemble_chat(
    model: ServedModel, body: ChatCompletionRequest, max_tokens: int | None
) -> Assembly:
    """The prompt of a chat with documents or a budget, put together on a thread.

    Args:
        max_tokens: Of the answer; without it, a quarter of the context stays free for it where that
            is possible.

    Raises:
        RequestTooLargeError: What must not be cut does not fit, or the answer alone leaves no room.
        InvalidRequestError: Two documents have one id.
    """
    body.check_context()
    info = model.client.info
    fields = body.context or ContextFields.model_validate({})
    # Where the KV cache holds less than the model's context, a request can be no longer than the
    # cache.
    longest = min(info.max_model_len, info.num_blocks * info.block_size)
    if max_tokens is not None and max_tokens >= longest:
        raise RequestTooLargeError(
            f"max_tokens is {max_tokens}, but prompt and answer together may have {longest} tokens",
            needed=max_tokens + 1,
            available=longest,
            param="max_tokens",
            hint=f"ask for fewer than {longest}; the answer may also be shorter than that",
        )
    most = longest - (max_tokens or 1)
    usual = most if max_tokens is not None else longest - longest // 4
    if fields.max_tokens is not None:
        most, usual = min(most, fields.max_tokens), min(usual, fields.max_tokens)
    return await asyncio.to_thread(
        assemble,
        model.chat_template,
        model.client.tokenizer,
        checked_messages(body.messages),
        named_documents(body.documents or []),
        ContextOptions(
            strategy=fields.strategy or "drop_oldest",
            document_order=fields.document_order or "given",
        ),
        most=most,
        usual=usual,
        **rendering_options(body.add_generation_prompt, body.continue_final_message),
    )


def named_documents(documents: Sequence[DocumentFields]) -> list[Document]:
    """Documents with ids that tell them apart: as given, else their place from 1, or the next
    number that is free.

    Raises:
        InvalidRequestError: Two were given the same id.
    """
    taken: set[str] = set()
    for i, document in enumerate(documents):
        if document.id is not None and str(document.id) in taken:
            message = f"documents[{i}].id is that of another document: {document.id!r}"
            raise InvalidRequestError(
                message, param=f"documents[{i}].id", hint="give each its own, or leave it out"
            )
        taken |= set() if document.id is None else {str(document.id)}
    named = []
    for i, document in enumerate(documents):
        name, number = document.id, i + 1
        while name is None:
            name = None if str(number) in taken else str(number)
            number += 1
        taken.add(str(name))
        named.append(
            Document(text=document.text, id=str(name), title=document.title, score=document.score)
        )
    return named


def context_usage(report: ContextReport) -> ContextUsage:
    """What the answer's ``usage`` says of it."""
    return ContextUsage(
        strategy=report.strategy,
        max_tokens=report.max_tokens,
        kept=KeptTokens(
            system=report.system_tokens,
            documents=report.kept_document_tokens,
            history=report.kept_history_tokens,
            last_message=report.last_message_tokens,
            template=report.template_tokens,
        ),
        cut=CutTokens(report.cut_document_tokens),
        dropped=DroppedTokens(report.dropped_document_tokens, report.dropped_history_tokens),
        turns=TurnCounts(report.kept_turns, report.dropped_turns),
        documents=[
            ContextDocument(use.index, use.id, use.score, use.tokens, use.kept_tokens)
            for use in report.documents
        ],
    )
