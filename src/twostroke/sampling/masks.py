"""Tokens that may not be drawn, and the logit bias: the filters that come before the penalties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from twostroke.errors import InvalidRequestError, NonFiniteLogitsError, TwostrokeError
from twostroke.sampling.pairs import Pairs
from twostroke.types import Request


def apply_masks(logits: Tensor, requests: Sequence[Request]) -> None:
    """Set to -inf, in place, what a row may not draw: by allowed and banned tokens, bad words and ``min_tokens``.

    Args:
        logits: float32 [rows, vocab].
        requests: One per row.
    """
    _keep_allowed(logits, requests)
    masked = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        masked.add(row, request.params.banned_token_ids)
        masked.add(row, list(_bad_word_ends(request)))
        if request.num_output_tokens < request.params.min_tokens:
            masked.add(row, request.stop_token_ids)
    if masked:
        logits[masked.index(logits.device)] = -torch.inf


def apply_logit_bias(logits: Tensor, requests: Sequence[Request]) -> None:
    """Add each request's ``logit_bias`` to its row of ``logits`` (float32 [rows, vocab]) in place."""
    biased = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        bias = request.params.logit_bias
        biased.add(row, bias.keys(), bias.values())
    if biased:
        logits[biased.index(logits.device)] += biased.values(logits.device)


def nothing_left(request: Request) -> TwostrokeError:
    """The error for a row in which every token has the logit -inf: what masked them, and what to change."""
    params = request.params
    active = [name for name in ("allowed_token_ids", "banned_token_ids", "bad_words") if getattr(params, name)]
    if request.num_output_tokens < params.min_tokens:
        active.append("min_tokens")
    if not active:
        return NonFiniteLogitsError(
            f"the model gave every token a logit of -inf at position {request.num_tokens}",
            hint="check the checkpoint and --dtype; the model itself produced these numbers",
        )
    return InvalidRequestError(
        f"no token can be drawn at position {request.num_tokens}: {' and '.join(active)} mask every one of them",
        param=active[0],
        hint="allow at least one token that is not banned, that ends no bad word, and that does not stop the answer "
        "before min_tokens",
    )


def _keep_allowed(logits: Tensor, requests: Sequence[Request]) -> None:
    allowed = Pairs(logits.shape[1])
    rows = []
    for row, request in enumerate(requests):
        if request.params.allowed_token_ids is not None:
            allowed.add(row, request.params.allowed_token_ids)
            rows.append(row)
    if rows:
        index = allowed.index(logits.device)
        kept = logits[index]  # [pairs]
        logits[torch.tensor(rows, device=logits.device)] = -torch.inf
        logits[index] = kept


def _bad_word_ends(request: Request) -> Iterator[int]:
    """Last tokens of those bad words whose other tokens are the end of the output."""
    for word in request.bad_words_token_ids:
        num_before = len(word) - 1
        if 0 <= num_before <= request.num_output_tokens:
            end = request.token_ids[request.num_tokens - num_before :]
            if tuple(end) == word[:-1]:
                yield word[-1]
