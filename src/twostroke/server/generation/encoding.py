"""Texts to token ids beside a running event loop, within what memory allows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from twostroke.core.errors import InvalidRequestError, RequestTooLargeError, context_overflow
from twostroke.core.freed_memory import return_freed_memory
from twostroke.core.sampling_params import SamplingParams
from twostroke.engine.executor import ExecutorInfo
from twostroke.server.state.served_model import ServedModel
from twostroke.text.tokenizer import LONG_TEXT

T = TypeVar("T")

# Characters; a tokenizer takes some 250 bytes for each while it works.
VERY_LONG_TEXT = 200_000
# Characters of what one prompt is put together from: seconds of a tokenizer's work, and a gigabyte.
MAX_CONTEXT_CHARS = 4_000_000
# Bytes of one text, in UTF-8. It may have as many tokens: to make a list of four million holds the
# interpreter for 50 ms, and so does to forget what the tokenizer holds of them.
MAX_TEXT_BYTES = 2**20
BYTES_PER_TOKEN = 8  # a longer context than that many bytes fill may be given as many


def max_text_bytes(max_model_len: int) -> int:
    """The longest text that is encoded at all, whether or not it is cut afterwards."""
    return max(MAX_TEXT_BYTES, max_model_len * BYTES_PER_TOKEN)


async def beside_loop(work: Callable[[], T], *, slow: bool) -> T:
    """The result of ``work``, done on a thread if it may be slow."""
    return await asyncio.to_thread(work) if slow else work()


async def encode_text(
    model: ServedModel,
    text: str,
    *,
    add_special_tokens: bool,
    must_fit: bool = False,
    param: str = "prompt",
) -> list[int]:
    """Token ids of a text, special tokens in it included; see ``encode_pieces``."""
    return await encode_pieces(
        model, [text], add_special_tokens=add_special_tokens, must_fit=must_fit, param=param
    )


async def encode_pieces(
    model: ServedModel,
    pieces: Sequence[str],
    *,
    add_special_tokens: bool,
    must_fit: bool = False,
    param: str = "prompt",
) -> list[int]:
    """Token ids of a text's pieces, without blocking the event loop for long (10 ms).

    Args:
        must_fit: The caller refuses more tokens than the model's context. A text that must have
            more is refused here, before the work.

    Raises:
        RequestTooLargeError: With ``must_fit``, the text has too many tokens, whatever they are; or
            it is longer than ``max_text_bytes``.
    """
    tokenizer = model.tokenizer
    length = sum(map(len, pieces))
    if length <= LONG_TEXT:
        return tokenizer.encode_pieces(pieces, add_special_tokens)
    chars_per_token, max_tokens = tokenizer.max_chars_per_token, model.client.info.max_model_len
    if must_fit and chars_per_token is not None and length > max_tokens * chars_per_token:
        needed = -(-length // chars_per_token)
        message = context_overflow(
            max_tokens, f"the prompt of {length} characters has at least {needed} tokens"
        )
        raise RequestTooLargeError(
            message, needed=needed, available=max_tokens, param=param, hint="shorten the prompt"
        )
    num_bytes = sum(len(piece.encode(errors="surrogatepass")) for piece in pieces)
    check_length(model, num_bytes, param)
    # Of very long texts only a few are encoded at a time.
    very_long = length > VERY_LONG_TEXT
    async with model.long_texts if very_long else contextlib.nullcontext():
        tokens = await asyncio.to_thread(tokenizer.encode_pieces, pieces, add_special_tokens)
        if very_long:
            await asyncio.to_thread(return_freed_memory)
        return tokens


def check_length(model: ServedModel, num_bytes: int, param: str) -> None:
    """Raise ``RequestTooLargeError`` if texts of this many bytes or more cannot be encoded."""
    max_tokens = model.client.info.max_model_len
    if num_bytes > (limit := max_text_bytes(max_tokens)):
        however = f"{param} holds {num_bytes} bytes or more, and at most {limit} are encoded"
        message = context_overflow(max_tokens, however)
        raise RequestTooLargeError(
            message, needed=num_bytes, available=limit, param=param, hint="send less text"
        )


def check_tokens(model: ServedModel, tokens: Sequence[int], param: str) -> None:
    """Raise ``InvalidRequestError`` if one of ``tokens`` is none of the model's."""
    vocab_size = model.client.info.vocab_size
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocab_size:
        token = min(tokens) if min(tokens) < 0 else max(tokens)
        raise InvalidRequestError(
            f"{param} holds token {token}, but the vocabulary has {vocab_size} tokens"
            f" (0 to {vocab_size - 1})",
            param=param,
        )


def truncate_prompt(
    tokens: list[int], length: int | None, info: ExecutorInfo, params: SamplingParams
) -> list[int]:
    """The last ``length`` tokens of a prompt; ``None``: all of them.

    -1 stands for as many as fit into the model's context beside ``max_tokens``.
    """
    if length == -1:
        length = max(1, info.max_model_len - (params.max_tokens or 1))
    return tokens if length is None else tokens[-length:]
