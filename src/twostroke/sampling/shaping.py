"""What each filter of one row makes of the distribution that its token is drawn from.

Nothing is computed here in another way than for a draw: each stage is the sampler's own function
with one parameter in force, and weights, cumulative sums and the uniform number are those of the
draw. ``tests/sampling/test_shaping.py`` compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from twostroke.core.distribution import Distribution, ShapedToken, Stage
from twostroke.core.sampling_params import SamplingParams
from twostroke.sampling.batch_parameters import (
    min_weights,
    scale,
    top_k_of,
    truncates,
    truncation_of,
    uniforms_of,
)
from twostroke.sampling.drawing import (
    WEIGHT_UNIT,
    WIDENING,
    Dropped,
    Truncation,
    dropped_by,
    first_width,
    ranked,
    weights_of,
)
from twostroke.sampling.editing import edit_logits
from twostroke.sampling.logprobs import logprobs_of
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import NO_MASKS, TokenMask

MODEL = "model"
_NEUTRAL = SamplingParams(max_tokens=None)
_EDITS = (
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


class _Shape(NamedTuple):
    """Weights after one filter, int64 [1, vocab], in units of 2**-40 of the likeliest token's."""

    name: str
    weights: Tensor


@torch.inference_mode()
def shaped_distribution(
    logits: Tensor, request: RequestState, token_id: int, mask: TokenMask | None = None
) -> Distribution:
    """The distribution that a token was drawn from, filter by filter.

    It takes a sort of the row, for ranks, and a few passes over it for each filter in force.

    Args:
        logits: float32 [1, vocab], as the model gave them; not changed.
        request: Its state at the draw; ``params.distribution`` says how many tokens to list.
        token_id: What was drawn.
        mask: What the answer's form allows, if it has one.
    """
    shapes = [_Shape(MODEL, _weights(logits))]
    edited, masks = logits.clone(), NO_MASKS if mask is None else {0: mask}
    for name, alone in _edits(request, mask):
        edit_logits(edited, [alone], masks)
        shapes.append(_Shape(name, _weights(edited)))
    uniform: float | None = None
    if request.params.greedy:
        only = torch.zeros_like(shapes[0].weights)
        only[0, token_id] = int(WEIGHT_UNIT)
        shapes.append(_Shape("temperature", only))
    else:
        shapes += _truncations(edited, request.params)
        uniform = float(uniforms_of([request], logits.device))
    listed = _to_list(logits, shapes[-1].weights, token_id, request.params.distribution or 1)
    return Distribution(
        position=request.num_tokens,
        seed=request.spec.seed & (2**64 - 1),
        uniform=uniform,
        token_id=token_id,
        stages=[_stage(shape, listed) for shape in shapes],
        tokens=_tokens(logits, shapes, listed),
    )


def _edits(request: RequestState, mask: TokenMask | None) -> Iterator[tuple[str, RequestState]]:
    """Each filter before temperature that is in force, as a request that has no other."""
    params = request.params
    spec = request.spec
    bare = replace(request, params=_NEUTRAL, spec=replace(spec, bad_words_token_ids=()))
    if mask is not None:
        has_form = params.structured_outputs is not None
        yield "structured_outputs" if has_form else "thinking_token_budget", bare
    for name in _EDITS:
        value = getattr(params, name)
        if name == "bad_words":
            if spec.bad_words_token_ids:
                yield name, replace(bare, spec=spec)
        elif name == "min_tokens" and request.num_answer_tokens >= value:
            continue
        elif value != getattr(_NEUTRAL, name):
            yield name, replace(bare, params=replace(_NEUTRAL, **{name: value}))


def _truncations(edited: Tensor, params: SamplingParams) -> Iterator[_Shape]:
    """Temperature, top-k, top-p and min-p, as far as they are in force.

    Args:
        edited: float32 [1, vocab], after all filters before it.
    """
    vocab = edited.shape[1]
    scaled = scale(edited, edited.max(dim=-1).values, [params])
    weights = weights_of(scaled)
    if params.temperature != 1:
        yield _Shape("temperature", weights)
    least = min_weights([params], edited.device)
    if not truncates(params, vocab):
        if params.min_p > 0:
            yield _Shape("min_p", weights.masked_fill(weights < least.unsqueeze(1), 0))
        return
    top_k = top_k_of(params, vocab)
    order, dropped = _dropped(scaled, weights, truncation_of([params], least, vocab), top_k)
    in_force = {"top_k": top_k < vocab, "top_p": params.top_p < 1, "min_p": params.min_p > 0}
    # What was not put in order is less likely than all that was, and dropped by the same filter.
    last = "top_k" if top_k <= order.shape[1] else "top_p"
    for name, drop in zip(in_force, dropped):
        gone = torch.full_like(weights, name == last, dtype=torch.bool).scatter(1, order, drop)
        gone &= weights > 0
        # Where sums are beyond 2**53, top-p of 1 may be rounded to a little less.
        if in_force[name] or bool(gone.any()):
            weights = weights.masked_fill(gone, 0)
            yield _Shape(name, weights)


def _dropped(
    scaled: Tensor, weights: Tensor, truncation: Truncation, top_k: int
) -> tuple[Tensor, Dropped]:
    """The likeliest tokens in order, int64 [1, width], and what each filter drops of them.

    They are as many as are needed to know what it drops of all, as in ``draw_truncated``.
    """
    vocab, totals = scaled.shape[1], weights.sum(dim=-1)
    width = first_width([top_k])
    while True:
        order = ranked(scaled, min(width, vocab))
        dropped, decided = dropped_by(weights.gather(1, order), totals, truncation, vocab)
        if width >= vocab or bool(decided):
            return order, dropped
        width *= WIDENING


def _weights(logits: Tensor) -> Tensor:
    """The weights of logits, float32 [1, vocab], without a temperature."""
    return weights_of(scale(logits, logits.max(dim=-1).values, [_NEUTRAL]))


def _to_list(logits: Tensor, final: Tensor, token_id: int, num_top: int) -> Tensor:
    """The tokens to list, int64 [tokens]: the likeliest before and after all filters, the drawn
    one."""
    width = min(num_top, logits.shape[1])
    before = ranked(logits, width)[0].tolist()
    after = ranked(final.to(torch.float32), width)[0]
    ids = list(dict.fromkeys([*before, *after[final[0, after] > 0].tolist(), token_id]))
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)


def _stage(shape: _Shape, listed: Tensor) -> Stage:
    weights = shape.weights[0]
    total = int(weights.sum())
    shares = weights.to(torch.float64) / total
    # In bits: `entr` is -p ln p.
    entropy = float(torch.special.entr(shares).sum() / torch.log(torch.tensor(2.0)))
    rest = total - int(weights[listed].sum())
    return Stage(shape.name, int((weights > 0).sum()), entropy, rest / total)


def _tokens(logits: Tensor, shapes: Sequence[_Shape], listed: Tensor) -> list[ShapedToken]:
    """The listed tokens, the likeliest first."""
    final = shapes[-1].weights[0]
    ends = final.cumsum(dim=-1)
    total = int(ends[-1])
    columns = []  # of each stage, the weights of the listed tokens and the weight of all
    for shape in shapes:
        columns.append((shape.weights[0, listed].tolist(), int(shape.weights.sum())))
    tokens = []
    for place, entry in enumerate(logprobs_of(logits[0], listed.tolist())):
        weights = [column[place] for column, _ in columns]
        end = int(ends[entry.token_id])
        tokens.append(
            ShapedToken(
                entry.token_id,
                entry.logprob,
                entry.rank,
                [weight / whole for weight, (_, whole) in zip(weights, columns)],
                _removed_by(shapes, weights),
                (end - weights[-1]) / total,
                end / total,
            )
        )
    return sorted(tokens, key=lambda token: (-token.logprob, token.token_id))


def _removed_by(shapes: Sequence[_Shape], weights: Sequence[int]) -> str | None:
    """The filter after which a token has no weight any more, if it has none at the end."""
    last = max((place for place, weight in enumerate(weights) if weight), default=-1)
    return None if last == len(weights) - 1 else shapes[last + 1].name
