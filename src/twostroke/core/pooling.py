"""Requests that want a vector instead of tokens: what a client asks, and what the engine makes."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from operator import mul
from typing import Literal

import msgspec

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams

# Which hidden states become the vector: the last token's, the first token's, or their mean.
PoolingKind = Literal["last", "cls", "mean"]
PoolingTask = Literal["embed", "score"]


class PoolingAbility(msgspec.Struct, frozen=True, kw_only=True):
    """What vectors a loaded model gives.

    Attributes:
        kind: Which hidden states embeddings are made of.
        normalise: Whether embeddings have length 1.
        size: Elements of an embedding; 0 if there are none.
        sizes: The shorter ones that it was trained for; empty if the checkpoint names none.
        score_kind: Which hidden state a ranking model's score reads; ``None`` for other models.
        score_tokens: For a ranking model without a head: the tokens for no and yes, its answer to
            the question whether a document fits (``text/judgements.py``).
        whole_prompts: Each token sees all of its prompt, so a prompt runs within one step.
        prompts: Texts that its makers had put before others, by the names of what for; clients put
            them there themselves, or name one in an API that has a field for it.
        reason: Why it gives no embeddings, if it gives none, and what to change.
    """

    kind: PoolingKind = "last"
    normalise: bool = True
    size: int = 0
    sizes: tuple[int, ...] = ()
    score_kind: PoolingKind | None = None
    score_tokens: tuple[str, str] | None = None
    whole_prompts: bool = False
    prompts: tuple[tuple[str, str], ...] = ()
    reason: tuple[str, str] = ("", "")


class PoolingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asks of a prompt.

    Attributes:
        task: ``embed``: the prompt's embedding. ``score``: one number, a ranking model's judgement
            of a pair of texts.
        dimensions: Elements of an embedding to keep, then normalise (Matryoshka embeddings,
            Kusupati et al. 2022); ``None`` keeps all.
        normalise: Whether an embedding has length 1; ``None``: as the model's makers chose.
        second_text_start: Position at which the second text of a pair begins, for models that mark
            the two apart; ``None`` if there is one text.
        score_token_ids: For models that score by two tokens: those that stand for no and yes.
    """

    task: PoolingTask = "embed"
    dimensions: int | None = None
    normalise: bool | None = None
    second_text_start: int | None = None
    score_token_ids: tuple[int, int] | None = None


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor makes of a prompt's hidden states; params and the model's ability together.

    Attributes:
        size: Elements that are kept of an embedding; a score has one.
    """

    task: PoolingTask
    kind: PoolingKind
    normalise: bool = False
    size: int = 1
    second_text_start: int | None = None
    score_token_ids: tuple[int, int] | None = None
    whole_prompts: bool = False

    @property
    def reads_prefix_cache(self) -> bool:
        """Whether cached tokens need not be computed: only if their hidden states are not read."""
        return self.kind == "last" and not self.whole_prompts


# Nothing is drawn. A sampler that is asked all the same would take one token.
NOTHING_DRAWN = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)


def resolve_pooling(params: PoolingParams, ability: PoolingAbility, num_tokens: int) -> Pooling:
    """What the engine is to make of a prompt of ``num_tokens`` tokens.

    Raises:
        InvalidRequestError: The model gives no such vector, or not of this size.
    """
    start = params.second_text_start
    if start is not None and not (type(start) is int and 0 <= start <= num_tokens):
        raise InvalidRequestError(
            f"the second text begins at token {start!r} of {num_tokens}", param="second_text_start"
        )
    if params.task == "score":
        if ability.score_kind is None:
            raise InvalidRequestError(
                "this model has no ranking head", hint="compare embeddings, or serve a reranker"
            )
        if (params.score_token_ids is None) != (ability.score_tokens is None):
            needed = "needs" if ability.score_tokens else "has a head and takes no"
            raise InvalidRequestError(
                f"this ranking model {needed} score_token_ids", param="score_token_ids"
            )
        return Pooling(
            task="score",
            kind=ability.score_kind,
            second_text_start=start,
            score_token_ids=params.score_token_ids,
            whole_prompts=ability.whole_prompts,
        )
    if ability.reason[0]:
        message, hint = ability.reason
        raise InvalidRequestError(message, hint=hint or None)
    return Pooling(
        task="embed",
        kind=ability.kind,
        normalise=ability.normalise if params.normalise is None else params.normalise,
        size=_size(params.dimensions, ability),
        second_text_start=start,
        whole_prompts=ability.whole_prompts,
    )


def _size(dimensions: int | None, ability: PoolingAbility) -> int:
    if dimensions is None:
        return ability.size
    if type(dimensions) is not int or not 1 <= dimensions <= ability.size:
        raise InvalidRequestError(
            f"dimensions must be from 1 to {ability.size}, the size of this model's embeddings,"
            f" got {dimensions!r}",
            param="dimensions",
        )
    if ability.sizes and dimensions not in (*ability.sizes, ability.size):
        sizes = ", ".join(map(str, ability.sizes))
        raise InvalidRequestError(
            f"this model was not trained for embeddings of {dimensions} elements",
            param="dimensions",
            hint=f"give one of {sizes}",
        )
    return dimensions


def pack_vector(values: Sequence[float]) -> bytes:
    """A vector in its wire form: little-endian float32."""
    packed = array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_vector(data: bytes) -> list[float]:
    """The elements of a packed vector."""
    packed = array("f")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of one size; 0 if one of them is 0."""
    lengths = math.hypot(*first) * math.hypot(*second)
    return sum(map(mul, first, second)) / lengths if lengths else 0.0
