"""Which tokens of a streamed answer had been guessed, and which guesses were wrong."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from twostroke.core.output import RequestOutput
from twostroke.text.tokenizer import Tokenizer


class Drafts(Struct, kw_only=True):
    """The guesses that the step of a chunk verified, in order of position.

    Attributes:
        token_ids: All of them.
        tokens: The text of each, decoded alone: part of a character becomes U+FFFD.
        num_accepted: How many of them are the chunk's first new tokens. The one after these was
            replaced by the chunk's last new token; those after it were never compared.
    """

    token_ids: list[int]
    tokens: list[str]
    num_accepted: int


def drafts_of(output: RequestOutput, tokenizer: Tokenizer) -> Drafts | UnsetType:
    """What the step verified for a choice; unset if that was nothing."""
    if not output.draft_token_ids:
        return UNSET
    return Drafts(
        token_ids=output.draft_token_ids,
        tokens=[tokenizer.decode([token]) for token in output.draft_token_ids],
        num_accepted=output.num_accepted_drafts,
    )
