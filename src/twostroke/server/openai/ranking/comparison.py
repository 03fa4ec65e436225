"""From texts of two sides to the prompts whose vectors say how well they fit together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from twostroke.core.errors import InvalidRequestError
from twostroke.core.pooling import PoolingParams, resolve_pooling
from twostroke.server.openai.embeddings.prompt_tokens import PoolingPrompt, PromptEncoder
from twostroke.server.openai.ranking.answer import ScoreReader
from twostroke.server.state.served_model import ServedModel
from twostroke.text.judgements import score_token_ids


class SideNames(NamedTuple):
    """How a request calls its two sides."""

    first: str
    second: str


class Comparison(NamedTuple):
    """What the engine is to compute, and how scores are read from its vectors."""

    prompts: list[PoolingPrompt]
    params: PoolingParams
    reader: ScoreReader


async def encode_comparison(
    model: ServedModel,
    first: Sequence[str],
    second: Sequence[str],
    names: SideNames,
    *,
    max_tokens: int | None = None,
    add_special_tokens: bool = True,
    instruction: str | None = None,
) -> Comparison:
    """The prompts of texts that are to be compared: one for each pair if the model ranks pairs,
    else one for each text, whose embedding it is.

    Args:
        first: One text, or as many as ``second``.
        names: For refusals.
        max_tokens: See ``PromptEncoder``.
        add_special_tokens: To texts; pairs always have them.
        instruction: What documents are wanted for, of models that are asked whether they fit.

    Raises:
        InvalidRequestError: The model gives neither scores nor embeddings, or takes no instruction;
            or a text is empty.
        RequestTooLargeError: A prompt exceeds the model's context.
    """
    ability = model.client.info.pooling
    ranks = ability.score_kind is not None
    params = PoolingParams(task="score" if ranks else "embed")
    if ability.score_tokens is not None:
        ids = score_token_ids(model.tokenizer, ability.score_tokens)
        params = PoolingParams(task="score", score_token_ids=ids)
    elif instruction:
        raise InvalidRequestError(
            "this model takes no instruction", param="instruction", hint="leave it out"
        )
    resolve_pooling(params, ability, 0)  # before the work of encoding
    encoder = PromptEncoder(model, max_tokens, add_special_tokens)
    if ranks:
        prompts = await _encode_pairs(encoder, first, second, names, instruction)
    else:
        prompts = await _encode_sides(encoder, first, second, names)
    return Comparison(prompts, params, ScoreReader(None if ranks else len(first)))


async def _encode_pairs(
    encoder: PromptEncoder,
    first: Sequence[str],
    second: Sequence[str],
    names: SideNames,
    instruction: str | None,
) -> list[PoolingPrompt]:
    prompts = []
    for index, text in enumerate(second):
        query = first[0] if len(first) == 1 else first[index]
        param = _param(names.second, second, index)
        prompts.append(await encoder.encode_pair(query, text, param, instruction))
        await asyncio.sleep(0)  # other requests get their turn in between
    return prompts


async def _encode_sides(
    encoder: PromptEncoder, first: Sequence[str], second: Sequence[str], names: SideNames
) -> list[PoolingPrompt]:
    prompts = []
    for name, texts in ((names.first, first), (names.second, second)):
        for index, text in enumerate(texts):
            prompts.append(await encoder.encode(text, _param(name, texts, index)))
            await asyncio.sleep(0)
    return prompts


def _param(name: str, texts: Sequence[str], index: int) -> str:
    return name if len(texts) == 1 else f"{name}[{index}]"
