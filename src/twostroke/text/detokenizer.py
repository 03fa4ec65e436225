"""Output tokens to text as they come: complete characters only, at a cost linear in the tokens.

There are two ways, by the tokenizer's decoder. A byte-level one maps every token to bytes, so the
output is one byte stream with an incremental UTF-8 decoder behind it. Every other one is asked for
the text of a short window of the latest tokens, with and without the new ones (the prefix and read
offsets of text-generation-inference and vLLM). The `DecodeStream` of the `tokenizers` library is
not used: it raises "Invalid prefix" on outputs that are no valid UTF-8.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from twostroke.core.errors import EngineError
from twostroke.text.byte_tokens import fallback_byte
from twostroke.text.tokenizer import Tokenizer


class _Stream(Protocol):
    def push(self, token_ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


class IncrementalDetokenizer:
    """The text of one growing output.

    All that `push` and `finish` returned, joined, is exactly `tokenizer.decode(all ids,
    skip_special_tokens)`. U+FFFD comes out only where that has one too. With byte fallback, a run
    of byte tokens is held back until it ends: whether it is text at all depends on its last byte.

    Args:
        context_ids: What the output continues. Matters for sentencepiece-like tokenizers, which
            drop a leading space: give the prompt for a completion (the space is kept), nothing for
            the fresh turn of a chat.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        context_ids: Sequence[int] = (),
    ) -> None:
        self._finished = False
        self._stream: _Stream
        if {step["type"] for step in tokenizer.decoder_steps} == {"ByteLevel"}:
            self._stream = _ByteStream(tokenizer, skip_special_tokens)
        else:
            self._stream = _WindowStream(tokenizer, skip_special_tokens, context_ids)

    def push(self, token_ids: Iterable[int]) -> str:
        """Add tokens; returns the new text that no later token can change.

        Raises:
            EngineError: After `finish`.
        """
        if self._finished:
            raise EngineError("tokens were pushed to a detokenizer that has finished")
        return self._stream.push(token_ids)

    def finish(self) -> str:
        """The text still held back, as `decode` gives it; empty when called again."""
        if self._finished:
            return ""
        self._finished = True
        return self._stream.finish()


class _ByteStream:
    """Byte-level tokens. Python and the library replace invalid UTF-8 alike, as Unicode says."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skip = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._held = b""  # the beginning of a character

    def push(self, token_ids: Iterable[int]) -> str:
        skip = self._skip
        data = self._held + b"".join([self._token_bytes(t) for t in token_ids if t not in skip])
        # An incremental decoder calls the same, but is written in Python and takes twice as long.
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._held = data[num_read:]
        return text

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode("utf-8", errors="replace")


class _WindowStream:
    """Any decoder in which a token's text depends on little before it.

    `_ids` is the window. Its first `_read` tokens have been emitted and decode by themselves to
    `_prefix`, which is not empty once there is text: so what a decoder does to the start of a text
    happens to them, not to the new tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool, context_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        types = {step["type"] for step in tokenizer.decoder_steps}
        self._byte_fallback = "ByteFallback" in types
        self._byte_level = "ByteLevel" in types
        self._ids: list[int] = self._context(context_ids)
        self._read = len(self._ids)
        self._prefix = self._decode(self._ids)

    def push(self, token_ids: Iterable[int]) -> str:
        self._ids.extend(t for t in token_ids if self._visible(t))
        if len(self._ids) == self._read or (self._byte_fallback and self._is_byte(self._ids[-1])):
            return ""
        text = self._decode(self._ids)
        if self._byte_level and text.endswith("\ufffd"):
            # A byte-level step inside a longer decoder: perhaps the middle of a character.
            return ""
        new = text[len(self._prefix) :]
        rest = self._decode(self._ids[self._read :])
        if rest:
            self._ids, self._prefix = self._ids[self._read :], rest
        else:
            self._prefix = text
        self._read = len(self._ids)
        return new

    def finish(self) -> str:
        return self._decode(self._ids)[len(self._prefix) :]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _visible(self, token_id: int) -> bool:
        """Whether a token has text: `decode` drops unknown tokens, and special ones if asked to."""
        if self._skip_special and token_id in self._tokenizer.special_ids:
            return False
        return self._tokenizer.backend.id_to_token(token_id) is not None

    def _is_byte(self, token_id: int) -> bool:
        piece = self._tokenizer.backend.id_to_token(token_id)
        return piece is not None and fallback_byte(piece) is not None

    def _context(self, context_ids: Sequence[int]) -> list[int]:
        """The last token of the context that has text and ends on a character."""
        for token in reversed(context_ids):
            if self._visible(token) and not self._is_byte(token):
                text = self._decode([token])
                if text and not text.endswith("\ufffd"):
                    return [token]
        return []
