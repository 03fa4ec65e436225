"""Log-probabilities of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TokenLogprob(NamedTuple):
    """Log-probability of one token at one position, and its rank there (1 is the likeliest)."""

    token_id: int
    logprob: float
    rank: int


@dataclass(slots=True)
class PositionLogprobs:
    """Log-probabilities at one position.

    They are those of the token that is there, and of the likeliest ones in falling order.
    """

    chosen: TokenLogprob
    top: list[TokenLogprob]
