"""The ``usage`` of an answer: its tokens, and how its prompt was put together."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.prefix_hit import PrefixEnd, PrefixHit
from twostroke.server.generation.response_format import CallTokens
from twostroke.text.context_report import ContextReport


class PrefixHitDetails(Struct):
    __doc__ = (
        "Of a model with recurrent layers: the prompt's beginning was cached up to ``state_tokens``"
        " with the layers' state, up to ``block_tokens`` without; ``end`` says why no more was."
    )

    state_tokens: int
    block_tokens: int
    end: PrefixEnd


class PromptTokensDetails(Struct):
    cached_tokens: int
    prefix_hit: PrefixHitDetails | UnsetType = UNSET


class CompletionTokensDetails(Struct):
    """How guessed tokens fared (speculation), and how many of all were thoughts."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int = 0


class KeptTokens(Struct):
    __doc__ = (
        "They add up to the prompt's; ``template`` is what the chat template adds, less what it"
        " leaves out."
    )

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
    __doc__ = (
        "One of the request's documents; ``kept_tokens`` is 0 if it was left out, ``score`` null if"
        " none was needed."
    )

    index: int
    id: str
    score: float | None
    tokens: int
    kept_tokens: int


class ContextUsage(Struct):
    __doc__ = (
        "How a prompt was put together; all counts but those of turns are tokens. ``ranker`` says"
        " where the documents' scores come from: ``given``, ``bm25`` or a model's name."
    )

    strategy: str
    max_tokens: int
    kept: KeptTokens
    cut: CutTokens
    dropped: DroppedTokens
    turns: TurnCounts
    documents: list[ContextDocument]
    ranker: str | None = None


class Usage(Struct):
    """Tokens of one call, over all prompts and samples; a prompt counts once, whatever ``n``.

    Attributes:
        completion_tokens_details: Where tokens were guessed, or a model may think.
        context: For a chat that brought ``documents`` or ``context``.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    context: ContextUsage | UnsetType = UNSET


# Of a chunk: OpenAI leaves it out, or writes null where usage comes at the end; vLLM can give it
# with every chunk.
ChunkUsage = Usage | UnsetType | None


def make_usage(tokens: CallTokens, num_unsent: int = 0, num_reasoning: int | None = None) -> Usage:
    """The usage of a call so far, less output tokens that have not been sent.

    Args:
        num_reasoning: Tokens of thoughts, of a model that may think.
    """
    completion = tokens.completion - num_unsent
    return Usage(
        tokens.prompt,
        completion,
        tokens.prompt + completion,
        PromptTokensDetails(sum(tokens.cached), _hit_details(tokens.hit)),
        CompletionTokensDetails(tokens.accepted, tokens.rejected, num_reasoning or 0)
        if tokens.accepted or tokens.rejected or num_reasoning is not None
        else UNSET,
    )


def _hit_details(hit: PrefixHit | None) -> PrefixHitDetails | UnsetType:
    return UNSET if hit is None else PrefixHitDetails(hit.state_tokens, hit.block_tokens, hit.end)


def context_usage(report: ContextReport) -> ContextUsage:
    """The part of the ``usage`` that reports how a prompt was put together."""
    return ContextUsage(
        strategy=report.strategy,
        max_tokens=report.max_tokens,
        kept=KeptTokens(
            system=report.system_tokens,
            documents=report.kept_document_tokens,
            history=report.kept_history_tokens,
            last_message=report.last_message_tokens,
            template=report.template_tokens,
        ),
        cut=CutTokens(report.cut_document_tokens),
        dropped=DroppedTokens(report.dropped_document_tokens, report.dropped_history_tokens),
        turns=TurnCounts(report.kept_turns, report.dropped_turns),
        documents=[
            ContextDocument(use.index, use.id, use.score, use.tokens, use.kept_tokens)
            for use in report.documents
        ],
        ranker=report.ranker,
    )
