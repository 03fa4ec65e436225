"""From a chat request to its prompt: rendered by the chat template, encoded, cut to length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from twostroke.core.sampling_params import SamplingParams
from twostroke.gateway.caller import Caller
from twostroke.observability.tracing import names
from twostroke.observability.tracing.trace import NOT_TRACED, Trace
from twostroke.server.generation.encoding import (
    beside_loop,
    check_length,
    encode_pieces,
    encode_text,
    truncate_prompt,
)
from twostroke.server.openai.chat_context import assemble_chat, counted_parts
from twostroke.server.openai.chat_messages import (
    ChatMessage,
    message_parts,
    num_chars,
    num_parts,
    template_messages,
    turn_options,
)
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context_report import ContextReport
from twostroke.text.json_values import is_large
from twostroke.text.tokenizer import LONG_TEXT

MANY_PARTS = 256  # more texts of messages are rendered on a thread


class ChatPrompt(NamedTuple):
    """A chat's token ids, and how they were put together if documents or a budget came along."""

    token_ids: list[int]
    report: ContextReport | None = None


async def chat_prompt(
    model: ServedModel,
    body: ChatCompletionRequest,
    params: SamplingParams,
    variables: Mapping[str, Any],
    request_id: str,
    caller: Caller,
) -> ChatPrompt:
    """The prompt of a chat, as ``body`` asks for it.

    Args:
        variables: Of the chat template.
        caller: On whose behalf documents are ranked, if they are.

    Raises:
        InvalidRequestError: The messages are malformed, or the template refuses them.
        RequestTooLargeError: The prompt cannot fit.
    """
    trace = caller.trace
    if body.documents or body.context is not None:
        assembly = await assemble_chat(
            model, body, params.max_tokens, variables, request_id, caller
        )
        prompt = ChatPrompt(*assembly)
        # Its tokens were counted on the way: there is no stage of their own.
        trace.stage(names.CONTEXT, None if prompt.report is None else counted_parts(prompt.report))
        trace.event(names.TOKENISED, {names.NUM_TOKENS: len(prompt.token_ids)})
        return prompt
    tokens = await encode_messages(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        must_fit=body.truncate_prompt_tokens is None,
        variables=variables,
        trace=trace,
    )
    info = model.client.info
    kept = truncate_prompt(tokens, body.truncate_prompt_tokens, info, params)
    if len(kept) < len(tokens):
        trace.event(names.TRUNCATED, {names.NUM_TOKENS: len(tokens) - len(kept)})
    return ChatPrompt(kept)


async def prediction(model: ServedModel, body: ChatCompletionRequest) -> list[int]:
    """The token ids of the answer that the client expects, if it says what it expects.

    No more are kept than an answer can have.
    """
    if body.prediction is None:
        return []
    text = body.prediction.text()
    check_length(model, len(text), "prediction")
    tokens = await encode_text(model, text, add_special_tokens=False)
    return tokens[: model.client.info.max_model_len]


async def encode_messages(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    add_special_tokens: bool = False,
    must_fit: bool = False,
    variables: Mapping[str, Any] | None = None,
    trace: Trace = NOT_TRACED,
) -> list[int]:
    """The token ids of a conversation; for the options see ``turn_options``.

    Args:
        must_fit: See ``encode_pieces``.
        variables: Of the chat template.
    """
    length = num_chars(messages)
    check_length(model, length, "messages")
    options = turn_options(add_generation_prompt, continue_final_message) | dict(variables or {})

    def render() -> list[str]:
        return model.chat_encoder.pieces(template_messages(messages), **options)

    large = length > LONG_TEXT or num_parts(messages) > MANY_PARTS or is_large(variables)
    pieces = await beside_loop(render, slow=large or model.slow_template)
    trace.stage(names.CONTEXT, message_parts(messages) if trace.is_recorded else None)
    tokens = await encode_pieces(
        model, pieces, add_special_tokens=add_special_tokens, must_fit=must_fit
    )
    trace.stage(names.TOKENISE, {names.NUM_TOKENS: len(tokens)})
    return tokens
