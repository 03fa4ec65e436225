"""Log-probabilities in three forms: of chats, of completions, and vLLM's of the prompt."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.text.tokenizer import Tokenizer

# JSON has no -inf; OpenAI's own API reports improbable tokens so.
LOWEST_LOGPROB = -9999.0


class ChatTokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTokenLogprob] | UnsetType = UNSET


class ChatLogprobs(Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    __doc__ = (
        "Parallel lists, one entry per token; the first token of an echoed prompt has no"
        " log-probability."
    )

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


# One entry per prompt token: nothing for the first, else token id to {logprob, rank,
# decoded_token}, as in vLLM.
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's name: its text, which several may share."""
    return tokenizer.token_text(token)


def token_as_id(_: Tokenizer, token: int) -> str:
    """A token's name under ``return_tokens_as_token_ids``, as in vLLM."""
    return f"token_id:{token}"


TokenName = Callable[[Tokenizer, int], str]


def chat_logprobs(
    positions: Sequence[PositionLogprobs],
    tokenizer: Tokenizer,
    top: int,
    name: TokenName = token_text,
) -> ChatLogprobs:
    """One entry per token, each with its ``top`` likeliest alternatives."""
    entries = []
    for position in positions:
        entry = _chat_entry(position.chosen, tokenizer, name)
        entry.top_logprobs = [_chat_entry(token, tokenizer, name) for token in position.top[:top]]
        entries.append(entry)
    return ChatLogprobs(entries)


class TextOffsets:
    """Where each token begins in a text, in characters.

    A token that ends a character begins where the character does.

    Args:
        start: Length of the text before the first token.
        skip_special_tokens: They are not in the text.
        text: The whole text, if the caller has it: it shows which special tokens, and whether the
            space before the first word, are in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: int = 0,
        *,
        skip_special_tokens: bool = True,
        text: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._length = start
        self._skips = skip_special_tokens
        self._text = text
        self._drops_space = text is not None and not text.startswith(" ")
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def next(self, token: int) -> int:
        """Where the next token begins."""
        offset = self._length
        data = self._tokenizer.token_bytes(token)
        if token in self._tokenizer.special_ids:
            shown = (
                not self._skips
                if self._text is None
                else self._text.startswith(data.decode(), offset)
            )
            self._length += len(data.decode()) if shown else 0
            return offset
        if self._drops_space and data:
            data, self._drops_space = data.removeprefix(b" "), False
        self._length += len(self._decoder.decode(data))
        return offset


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None],
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    top: int,
    offsets: TextOffsets,
    name: TokenName = token_text,
) -> CompletionLogprobs:
    """Parallel lists for ``tokens``, which move ``offsets`` on.

    ``None`` stands for a token without log-probabilities: the first of a prompt.
    """
    result = CompletionLogprobs()
    for position, token in zip(positions, tokens, strict=True):
        result.text_offset.append(offsets.next(token))
        result.tokens.append(name(tokenizer, token))
        result.token_logprobs.append(None if position is None else _finite(position.chosen.logprob))
        result.top_logprobs.append(
            None if position is None else _completion_top(position, tokenizer, top, name)
        )
    return result


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """The lists of ``first``, then those of ``second``."""
    return CompletionLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        first.top_logprobs + second.top_logprobs,
    )


def prompt_logprob_entries(
    positions: Sequence[PositionLogprobs], tokenizer: Tokenizer
) -> PromptLogprobs:
    """vLLM's form: nothing for the first token, then for each token id its entry."""
    entries: PromptLogprobs = [None]
    for position in positions:
        tokens = {token.token_id: token for token in (position.chosen, *position.top)}
        entries.append(
            {
                str(i): {
                    "logprob": _finite(t.logprob),
                    "rank": t.rank,
                    "decoded_token": tokenizer.token_text(i),
                }
                for i, t in tokens.items()
            }
        )
    return entries


def _chat_entry(token: TokenLogprob, tokenizer: Tokenizer, name: TokenName) -> ChatTokenLogprob:
    data = tokenizer.token_bytes(token.token_id)
    text = (
        data.decode("utf-8", errors="replace")
        if name is token_text
        else name(tokenizer, token.token_id)
    )
    return ChatTokenLogprob(text, _finite(token.logprob), list(data))


def _completion_top(
    position: PositionLogprobs, tokenizer: Tokenizer, top: int, name: TokenName
) -> dict[str, float]:
    # The chosen token is always there, as in OpenAI's API, even when it is not among the likeliest.
    tokens = [*position.top[:top], position.chosen]
    return {name(tokenizer, token.token_id): _finite(token.logprob) for token in tokens}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
