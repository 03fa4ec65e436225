"""Calls that bring documents or a budget: their prompt is put together so that it fits."""

from __future__ import annotations

import asyncio

from twostroke.core.errors import RequestTooLargeError, context_overflow
from twostroke.gateway.caller import Caller
from twostroke.observability.tracing import names
from twostroke.server.calls.call import Call, Context
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context import Assembly, OpenAssembly
from twostroke.text.context_report import ContextReport


async def assemble_prompt(
    model: ServedModel, call: Call, context: Context, request_id: str, caller: Caller
) -> Assembly:
    """The prompt of a call with documents or a budget, put together on a thread.

    Documents are ranked before anything is left out. Without ``max_tokens`` a quarter of the
    context stays free for the answer where that is possible.

    Raises:
        RequestTooLargeError: What must not be cut does not fit.
        TwostrokeError: The ranking by the model that the request names failed.
    """
    max_total, hard_limit, soft_limit = _limits(model, context, call.params.max_tokens)

    def begin() -> OpenAssembly:
        return OpenAssembly(
            model.chat_encoder,
            call.messages,
            context.documents,
            context.options,
            hard_limit=hard_limit,
            soft_limit=soft_limit,
            **call.rendering,
        )

    try:
        assembly = await asyncio.to_thread(begin)
        ranking = None
        if context.rank is not None and (task := assembly.to_rank()) is not None:
            ranking = await context.rank(task, caller, request_id)
        return await asyncio.to_thread(assembly.finish, *(ranking or ()))
    except RequestTooLargeError as error:
        raise RequestTooLargeError(
            context_overflow(max_total, error.message),
            needed=error.needed,
            available=error.available,
            param=error.param,
            hint=error.hint,
        ) from error


def _limits(model: ServedModel, context: Context, max_tokens: int | None) -> tuple[int, int, int]:
    """Tokens: most of prompt and answer, most of the prompt, and most that it should have."""
    info = model.client.info
    # A KV cache that holds less than the model's context bounds a request, too.
    max_total = info.longest_request
    hard_limit = max_total - (max_tokens or 1)
    soft_limit = hard_limit if max_tokens is not None else max_total - max_total // 4
    if context.max_tokens is not None:
        hard_limit = min(hard_limit, context.max_tokens)
        soft_limit = min(soft_limit, context.max_tokens)
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
