"""From a chat request to its prompt: rendered by the chat template, encoded, cut to length."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from twostroke.core.sampling_params import SamplingParams
from twostroke.server.generation.encoding import check_length, encode_text, truncate_prompt
from twostroke.server.openai.chat_context import assemble_chat
from twostroke.server.openai.chat_messages import (
    ChatMessage,
    num_chars,
    template_messages,
    turn_options,
)
from twostroke.server.openai.chat_request import ChatCompletionRequest
from twostroke.server.state.served_model import ServedModel
from twostroke.text.context_report import ContextReport
from twostroke.text.tokenizer import LONG_TEXT

MANY_MESSAGES = 256  # more are rendered on a thread


class ChatPrompt(NamedTuple):
    """A chat's token ids, and how they were put together if documents or a budget came along."""

    token_ids: list[int]
    report: ContextReport | None = None


async def chat_prompt(
    model: ServedModel, body: ChatCompletionRequest, params: SamplingParams
) -> ChatPrompt:
    """The prompt of a chat, as ``body`` asks for it.

    Raises:
        InvalidRequestError: The messages are malformed, or the template refuses them.
        RequestTooLargeError: The prompt cannot fit.
    """
    if body.documents or body.context is not None:
        return ChatPrompt(*await assemble_chat(model, body, params.max_tokens))
    tokens = await encode_messages(
        model,
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=bool(body.add_special_tokens),
        must_fit=body.truncate_prompt_tokens is None,
    )
    info = model.client.info
    return ChatPrompt(truncate_prompt(tokens, body.truncate_prompt_tokens, info, params))


async def encode_messages(
    model: ServedModel,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    add_special_tokens: bool = False,
    must_fit: bool = False,
) -> list[int]:
    """The token ids of a conversation; for the options see ``turn_options``.

    Args:
        must_fit: See ``encode_text``.
    """
    length = num_chars(messages)
    check_length(model, length, "messages")
    chat = template_messages(messages)
    options = turn_options(add_generation_prompt, continue_final_message)
    if length > LONG_TEXT or len(messages) > MANY_MESSAGES:
        text = await asyncio.to_thread(model.chat_template.render, chat, **options)
    else:
        text = model.chat_template.render(chat, **options)
    return await encode_text(model, text, add_special_tokens=add_special_tokens, must_fit=must_fit)
