"""What clients receive: OpenAI's objects, and vLLM's additions where asked for. Encoded by
msgspec.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class PromptTokensDetails(Struct):
    cached_tokens: int


class KeptTokens(Struct):
    """They add up to the prompt's; ``template`` is what the chat template adds, less what it leaves
    out.
    """

    system: int
    documents: int
    history: int
    last_message: int
    template: int


class CutTokens(Struct):
    """Missing at the end of documents that are there in part."""

    documents: int


class DroppedTokens(Struct):
    documents: int
    history: int


class TurnCounts(Struct):
    kept: int
    dropped: int


class ContextDocument(Struct):
    """One of the request's documents; ``kept_tokens`` is 0 if it was left out, ``score`` null if
    none was needed.
    """

    index: int
    id: str
    score: float | None
    tokens: int
    kept_tokens: int


class ContextUsage(Struct):
    """How a prompt was put together; all counts but those of turns are tokens."""

    strategy: str
    max_tokens: int
    kept: KeptTokens
    cut: CutTokens
    dropped: DroppedTokens
    turns: TurnCounts
    documents: list[ContextDocument]


class Usage(Struct):
    """Tokens of one call, over all prompts and samples; a prompt counts once, whatever ``n``.

    Attributes:
        context: Of a chat that brought ``documents`` or ``context``.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    context: ContextUsage | UnsetType = UNSET


class ChatTokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTokenLogprob] | UnsetType = UNSET


class ChatLogprobs(Struct):
    content: list[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Parallel lists, one entry per token; the first token of an echoed prompt has no
    log-probability.
    """

    text_offset: list[int] = []
    token_logprobs: list[float | None] = []
    tokens: list[str] = []
    top_logprobs: list[dict[str, float] | None] = []


# One entry per prompt token: nothing for the first, else token id to {logprob, rank,
# decoded_token}, as in vLLM.
PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class AnswerMessage(Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Struct, kw_only=True):
    """One choice of a text completion, or one piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """A text completion, or one chunk of it: OpenAI calls both ``text_completion``."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
