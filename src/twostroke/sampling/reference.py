"""The sampler for one row in plain, slow loops: what ``sampler.py`` is tested against.

Only the uniform is shared with the fast code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from twostroke.core.errors import InvalidRequestError
from twostroke.core.sampling_params import SamplingParams
from twostroke.sampling.random import uniforms


def sample_reference(
    logits: Tensor,
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    seed: int,
    stop_token_ids: frozenset[int],
    bad_words_token_ids: Sequence[tuple[int, ...]] = (),
    allowed_by_form: Collection[int] | None = None,
) -> int:
    """The next token, filtered and drawn as ``SamplingParams`` describes.

    Args:
        logits: float32 [vocab]; not changed.
        seed: In [0, 2**64).
        stop_token_ids: All tokens that end the request.
        bad_words_token_ids: ``params.bad_words`` as token sequences.
        allowed_by_form: The tokens that the answer's form allows, if it has one.

    Raises:
        InvalidRequestError: Every token is masked.
    """
    scores = logits.detach().to("cpu", torch.float32).clone()
    masked = masked_tokens(
        len(scores), params, output_token_ids, stop_token_ids, bad_words_token_ids
    )
    if allowed_by_form is not None:
        masked |= set(range(len(scores))) - set(allowed_by_form)
    for token in masked:
        scores[token] = -torch.inf
    for token, bias in params.logit_bias.items():
        scores[token] += bias
    penalize(scores, params, prompt_token_ids, output_token_ids)

    likeliest = float(scores.max())
    if likeliest == -torch.inf:
        raise InvalidRequestError("no token can be drawn: every one of them is masked")
    if params.temperature == 0:
        return scores.tolist().index(likeliest)
    scaled = (scores - likeliest) / torch.tensor(
        max(params.temperature, 1e-20), dtype=torch.float32
    )
    # Relative probabilities as integers in units of 2**-40, whose sums are exact.
    weights = [int(probability * 2**40) for probability in scaled.exp().tolist()]
    kept = truncate(scaled.tolist(), weights, params)

    position = len(prompt_token_ids) + len(output_token_ids)
    uniform = float(
        uniforms(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.int64))[0]
    )
    total = sum(weights[token] for token in kept)
    target = min(int(uniform * total), total - 1)
    running = 0
    for token in sorted(kept):
        running += weights[token]
        if running > target:
            return token
    raise AssertionError("the target is less than the total")


def masked_tokens(
    vocab_size: int,
    params: SamplingParams,
    output_token_ids: Sequence[int],
    stop_token_ids: frozenset[int],
    bad_words_token_ids: Sequence[tuple[int, ...]],
) -> set[int]:
    """Tokens that may not be drawn.

    They are not allowed, banned, end a bad word, or stop before ``min_tokens``.
    """
    masked = set(params.banned_token_ids)
    for token in range(vocab_size):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            masked.add(token)
    for word in bad_words_token_ids:
        before, last = list(word[:-1]), word[-1]
        written = [*output_token_ids, last]
        if written[-len(word) :] == [*before, last]:
            masked.add(last)
    if len(output_token_ids) < params.min_tokens:
        masked |= stop_token_ids
    return masked


def penalize(
    scores: Tensor,
    params: SamplingParams,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
) -> None:
    """Repetition, presence and frequency penalties, on ``scores`` [vocab] in place."""
    for token in range(len(scores)):
        if token in prompt_token_ids or token in output_token_ids:
            if scores[token] > 0:
                scores[token] /= params.repetition_penalty
            else:
                scores[token] *= params.repetition_penalty
        count = list(output_token_ids).count(token)
        if count > 0:
            scores[token] -= params.presence_penalty
            scores[token] -= torch.tensor(params.frequency_penalty, dtype=torch.float32) * count


def truncate(scaled: list[float], weights: list[int], params: SamplingParams) -> list[int]:
    """Tokens that top-k, then top-p, then min-p keep, the likeliest first, by id among equals."""
    kept = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    if params.top_k > 0:
        kept = kept[: params.top_k]
    if params.top_p < 1:
        total = sum(weights[token] for token in kept)
        nucleus: list[int] = []
        reached = 0
        for token in kept:
            if reached >= params.top_p * total:
                break
            nucleus.append(token)
            reached += weights[token]
        kept = nucleus
    return [token for token in kept if weights[token] >= params.min_p * 2**40]
