"""From a call's messages to its prompt: rendered by the chat template, encoded, made to fit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from twostroke.core.errors import RequestTooLargeError, context_overflow
from twostroke.gateway.caller import Caller
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import NOT_TRACED, Trace
from twostroke.server.calls.call import Call, Context
from twostroke.server.generation.encoding import (
    beside_loop,
    encode_pieces,
    truncate_prompt,
)
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context import Assembly, OpenAssembly
from twostroke.text.context_report import ContextReport
from twostroke.text.json_values import is_large
from twostroke.text.tokenizer import LONG_TEXT

MANY_TEXTS = 256  # more texts of messages are rendered on a thread


class Prompt(NamedTuple):
    """Token ids, and how they were put together if documents or a budget came along."""

    token_ids: list[int]
    report: ContextReport | None = None


async def make_prompt(model: ServedModel, call: Call, request_id: str, caller: Caller) -> Prompt:
    """The prompt of a call; it raises what ``prepare`` does."""
    trace = caller.trace
    if call.context is not None:
        prompt = Prompt(*await _assemble(model, call, call.context, request_id, caller))
        # Its tokens were counted on the way: there is no stage of their own.
        trace.stage(names.CONTEXT, None if prompt.report is None else _counted_parts(prompt.report))
        trace.event(names.TOKENISED, {names.NUM_TOKENS: len(prompt.token_ids)})
        return prompt
    tokens = await encode_messages(
        model,
        call.messages,
        call.rendering,
        add_special_tokens=call.add_special_tokens,
        must_fit=call.truncate_to is None,
        trace=trace,
    )
    kept = truncate_prompt(tokens, call.truncate_to, model.client.info, call.params)
    if len(kept) < len(tokens):
        trace.event(names.TRUNCATED, {names.NUM_TOKENS: len(tokens) - len(kept)})
    return Prompt(kept)


async def _assemble(
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


async def encode_messages(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    rendering: Mapping[str, Any],
    *,
    add_special_tokens: bool = False,
    must_fit: bool = False,
    trace: Trace = NOT_TRACED,
) -> list[int]:
    """The token ids of a conversation.

    Args:
        messages, rendering: See ``Call``.
        must_fit: See ``encode_pieces``.
    """

    def render() -> list[str]:
        return model.chat_encoder.pieces(messages, **rendering)

    length = sum(map(message_length, messages))
    num_texts = sum(len(_texts(message)) + 1 for message in messages)
    large = length > LONG_TEXT or num_texts > MANY_TEXTS or is_large(rendering)
    pieces = await beside_loop(render, slow=large or model.slow_template)
    trace.stage(names.CONTEXT, _message_parts(messages) if trace.is_recorded else None)
    tokens = await encode_pieces(
        model, pieces, add_special_tokens=add_special_tokens, must_fit=must_fit
    )
    trace.stage(names.TOKENISE, {names.NUM_TOKENS: len(tokens)})
    return tokens


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def message_length(message: Mapping[str, Any]) -> int:
    """Characters that a message can bring into the prompt."""
    functions = [call["function"] for call in message.get("tool_calls", ())]
    called = sum(len(each["name"]) + len(each["arguments"]) for each in functions)
    thought = len(message.get("reasoning_content", ""))
    return sum(map(len, _texts(message))) + called + thought


def _message_parts(messages: Sequence[Mapping[str, Any]]) -> dict[str, str | int]:
    """Characters of the system prompt, the history and the last message, for the call's trace.

    Counting their tokens would encode each text twice.
    """
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else len(messages) - 1
    counts = {"system": 0, "history": 0, "message": 0}
    for i, message in enumerate(messages):
        is_system = message["role"] in ("system", "developer") and i < last
        part = "system" if is_system else "history" if i < last else "message"
        counts[part] += message_length(message)
    named = {names.CONTEXT_PARTS[part]: count for part, count in counts.items()}
    return {names.CONTEXT_UNIT: "characters", **named}


def _counted_parts(report: ContextReport) -> dict[str, str | int]:
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
