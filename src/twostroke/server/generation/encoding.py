"""Texts to token ids beside a running event loop, within what memory allows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.server.state.served_model import ServedModel
from twostroke.text.tokenizer import LONG_TEXT

# Characters; a tokenizer takes some 250 bytes for each while it works.
VERY_LONG_TEXT = 200_000
# Characters of one prompt, or of what it is put together from: seconds of a tokenizer's work, and a
# gigabyte.
MAX_CONTEXT_CHARS = 4_000_000
CHARS_PER_TOKEN = 8  # a longer context than that many characters fill may be given as many


def max_text_chars(max_model_len: int) -> int:
    """The longest text that is encoded at all, whether or not it is cut afterwards."""
    return max(MAX_CONTEXT_CHARS, max_model_len * CHARS_PER_TOKEN)


async def encode_text(
    model: ServedModel, text: str, *, add_special_tokens: bool, must_fit: bool = False
) -> list[int]:
    """Token ids of a text, without blocking the event loop for long (10 ms).

    Args:
        must_fit: The caller refuses more tokens than the model's context. A text that must have
            more is refused here, before the work.

    Raises:
        RequestTooLargeError: With ``must_fit``, the text has too many tokens, whatever they are; or
            it is longer than ``max_text_chars``.
    """
    tokenizer = model.client.tokenizer
    if len(text) <= LONG_TEXT:
        return tokenizer.encode(text, add_special_tokens)
    chars_per_token, max_tokens = tokenizer.max_chars_per_token, model.client.info.max_model_len
    if must_fit and chars_per_token is not None and len(text) > max_tokens * chars_per_token:
        needed = -(-len(text) // chars_per_token)
        message = (
            f"the prompt of {len(text)} characters has at least {needed} tokens, the model's"
            f" context {max_tokens}"
        )
        raise RequestTooLargeError(
            message, needed=needed, available=max_tokens, param="prompt", hint="shorten the prompt"
        )
    check_length(model, len(text), "prompt")
    # Of very long texts only a few are encoded at a time.
    async with model.long_texts if len(text) > VERY_LONG_TEXT else contextlib.nullcontext():
        return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens)


def check_length(model: ServedModel, num_chars: int, param: str) -> None:
    """Raise ``RequestTooLargeError`` if texts of so many characters are not encoded at all."""
    if num_chars > (limit := max_text_chars(model.client.info.max_model_len)):
        message = f"{param} holds {num_chars} characters, and at most {limit} are encoded"
        raise RequestTooLargeError(
            message, needed=num_chars, available=limit, param=param, hint="send less text"
        )


def check_tokens(model: ServedModel, tokens: Sequence[int], param: str) -> None:
    """Raise ``InvalidRequestError`` if one of ``tokens`` is none of the model's."""
    vocab_size = model.client.info.vocab_size
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        raise InvalidRequestError(f"{param} holds token ids outside [0, {vocab_size})", param=param)


def truncate_prompt(
    tokens: list[int], length: int | None, info: ExecutorInfo, params: SamplingParams
) -> list[int]:
    """The last ``length`` tokens of a prompt; ``None``: all of them.

    -1 stands for as many as fit into the model's context beside ``max_tokens``.
    """
    if length == -1:
        length = max(1, info.max_model_len - (params.max_tokens or 1))
    return tokens if length is None else tokens[-length:]
