"""Log-probabilities in the three shapes that clients know: chat, completions, and vLLM's of the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.server.responses import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, PromptLogprobs
from twostroke.text.tokenizer import Tokenizer
from twostroke.types import PositionLogprobs, TokenLogprob

# JSON has no -inf; OpenAI's own API reports improbable tokens so.
LOWEST_LOGPROB = -9999.0


def chat_logprobs(positions: Sequence[PositionLogprobs], tokenizer: Tokenizer, top: int) -> ChatLogprobs:
    """One entry per token, each with its ``top`` likeliest alternatives."""
    entries = []
    for position in positions:
        entry = _chat_entry(position.chosen, tokenizer)
        entry.top_logprobs = [_chat_entry(token, tokenizer) for token in position.top[:top]]
        entries.append(entry)
    return ChatLogprobs(entries)


def completion_logprobs(
    positions: Sequence[PositionLogprobs | None], tokens: Sequence[int], tokenizer: Tokenizer, top: int, offset: int
) -> CompletionLogprobs:
    """Parallel lists for ``tokens``; ``offset`` is the length of the text before them.

    ``None`` stands for a token without log-probabilities: the first of a prompt.
    """
    result = CompletionLogprobs()
    for position, token in zip(positions, tokens, strict=True):
        text = tokenizer.token_text(token)
        result.text_offset.append(offset)
        offset += len(text)
        result.tokens.append(text)
        result.token_logprobs.append(None if position is None else _finite(position.chosen.logprob))
        result.top_logprobs.append(None if position is None else _completion_top(position, tokenizer, top))
    return result


def prompt_logprobs(positions: Sequence[PositionLogprobs], tokenizer: Tokenizer) -> PromptLogprobs:
    """vLLM's shape: nothing for the first token, then for each token id its log-probability, rank and text."""
    shaped: PromptLogprobs = [None]
    for position in positions:
        tokens = {token.token_id: token for token in (position.chosen, *position.top)}
        shaped.append(
            {
                str(i): {"logprob": _finite(t.logprob), "rank": t.rank, "decoded_token": tokenizer.token_text(i)}
                for i, t in tokens.items()
            }
        )
    return shaped


def _chat_entry(token: TokenLogprob, tokenizer: Tokenizer) -> ChatTokenLogprob:
    data = tokenizer.token_bytes(token.token_id)
    return ChatTokenLogprob(data.decode("utf-8", errors="replace"), _finite(token.logprob), list(data))


def _completion_top(position: PositionLogprobs, tokenizer: Tokenizer, top: int) -> dict[str, float]:
    # The chosen token is always there, as in OpenAI's API, even when it is not among the likeliest.
    tokens = [*position.top[:top], position.chosen]
    return {tokenizer.token_text(token.token_id): _finite(token.logprob) for token in tokens}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
