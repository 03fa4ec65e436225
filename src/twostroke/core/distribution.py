"""The distribution of one position: the model's own, and what each filter made of it."""

from __future__ import annotations

import msgspec


class Stage(msgspec.Struct, frozen=True):
    """The distribution after one filter.

    Attributes:
        name: The parameter that changed it; ``model`` is the distribution before all filters.
        num_tokens: Tokens of a probability above 0: those that could be drawn from it.
        entropy: In bits.
        rest: Probability of all tokens together that ``Distribution.tokens`` does not list.
    """

    name: str
    num_tokens: int
    entropy: float
    rest: float


class ShapedToken(msgspec.Struct, frozen=True):
    """One token in each stage.

    Attributes:
        logprob: Natural logarithm of the model's own probability, before all filters.
        rank: 1 plus the number of tokens that the model holds for likelier.
        probabilities: One for each stage.
        removed_by: The stage from which on its probability is 0, if it is 0 at the end.
        begin: Where its share of the cumulative distribution begins, which goes through the
            vocabulary by token id, from 0 to 1.
        end: Where that share ends; ``begin`` for a token that is removed.
    """

    token_id: int
    logprob: float
    rank: int
    probabilities: list[float]
    removed_by: str | None
    begin: float
    end: float


class Distribution(msgspec.Struct, frozen=True):
    """What one token was drawn from, and how.

    Attributes:
        position: How many tokens come before the token.
        seed: The sample's seed; with the position it gives the uniform number.
        uniform: In [0, 1): the token is drawn whose share of the cumulative distribution holds it.
            ``None`` where the likeliest token is taken (temperature 0).
        token_id: What was drawn.
        stages: The model's distribution, then one for each filter that is in force, in their order.
        tokens: The likeliest tokens of the model and those of the last stage, and the one that was
            drawn; in falling order of the model's probability.
    """

    position: int
    seed: int
    uniform: float | None
    token_id: int
    stages: list[Stage]
    tokens: list[ShapedToken]
