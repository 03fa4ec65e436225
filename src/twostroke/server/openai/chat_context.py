"""Chats that bring documents or a budget: their prompt is put together so that it fits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, context_overflow
from twostroke.gateway.caller import Caller
from twostroke.observability.tracing import names
from twostroke.server.generation.encoding import MAX_CONTEXT_CHARS
from twostroke.server.http.body_fields import check_unicode
from twostroke.server.openai.chat_messages import num_chars, template_messages, turn_options
from twostroke.server.openai.chat_request import (
    ChatCompletionRequest,
    ContextFields,
    DocumentFields,
)
from twostroke.server.openai.ranking.document_ranking import (
    choose_ranker,
    rank_documents,
    rank_or_give_up,
)
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context import Assembly, OpenAssembly
from twostroke.text.context_report import ContextReport
from twostroke.text.documents import Document


async def assemble_chat(
    model: ServedModel,
    body: ChatCompletionRequest,
    max_tokens: int | None,
    variables: Mapping[str, Any],
    request_id: str,
    caller: Caller,
) -> Assembly:
    """The prompt of a chat with documents or a budget, put together on a thread.

    Documents are ranked by the server's model, if there is one, before anything is left out. Where
    that fails BM25 ranks them, unless the request names the model.

    Args:
        max_tokens: Of the answer. Without it, a quarter of the context stays free for the answer
            where that is possible.
        variables: Of the chat template.

    Raises:
        RequestTooLargeError: What must not be cut does not fit, or the answer alone leaves no room.
        InvalidRequestError: Two documents have one id.
        TwostrokeError: The ranking by the model that the request names failed.
    """
    check_context(body)
    fields = body.context or ContextFields.model_validate({})
    ranker = choose_ranker(model, fields.ranker)
    max_total, hard_limit, soft_limit = _limits(model, fields, max_tokens)

    def begin() -> OpenAssembly:
        return OpenAssembly(
            model.chat_encoder,
            template_messages(body.messages),
            identify_documents(body.documents or []),
            fields.options(),
            hard_limit=hard_limit,
            soft_limit=soft_limit,
            **turn_options(body.add_generation_prompt, body.continue_final_message),
            **variables,
        )

    try:
        assembly = await asyncio.to_thread(begin)
        task = None if ranker is None else assembly.to_rank()
        if ranker is not None and task is not None:
            rank = rank_or_give_up if fields.ranker is None else rank_documents
            if (scores := await rank(ranker, task, caller, request_id)) is not None:
                return await asyncio.to_thread(assembly.finish, scores, ranker.model.name)
        return await asyncio.to_thread(assembly.finish)
    except RequestTooLargeError as error:
        raise RequestTooLargeError(
            context_overflow(max_total, error.message),
            needed=error.needed,
            available=error.available,
            param=error.param,
            hint=error.hint,
        ) from error


def _limits(
    model: ServedModel, fields: ContextFields, max_tokens: int | None
) -> tuple[int, int, int]:
    """Tokens: most of prompt and answer, most of the prompt, and most that it should have."""
    info = model.client.info
    # A KV cache that holds less than the model's context bounds a request, too.
    max_total = info.longest_request
    if max_tokens is not None and max_tokens >= max_total:
        raise RequestTooLargeError(
            context_overflow(max_total, f"max_tokens is {max_tokens}"),
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
    return max_total, hard_limit, soft_limit


def counted_parts(report: ContextReport) -> dict[str, str | int]:
    """What a prompt was put together of, in tokens, for the call's trace."""
    counts = {
        "system": report.system_tokens,
        "documents": report.kept_document_tokens,
        "history": report.kept_history_tokens,
        "message": report.last_message_tokens,
        "template": report.template_tokens,
        "budget": report.max_tokens,
        "cut_documents": report.cut_document_tokens + report.dropped_document_tokens,
        "cut_history": report.dropped_history_tokens,
        "cut_turns": report.dropped_turns,
    }
    named = {names.CONTEXT_PARTS[part]: count for part, count in counts.items()}
    return {names.CONTEXT_UNIT: "tokens", **named}


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
