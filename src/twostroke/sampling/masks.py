"""Tokens that may not be drawn, and the logit bias: the filters that come before the penalties."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from twostroke.core.errors import InvalidRequestError, NonFiniteLogitsError, TwostrokeError
from twostroke.sampling.pairs import Pairs
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import NO_MASKS, TokenMask, apply_token_masks
from twostroke.sampling.transfer import moved

# Of one row: more tokens are written by an operation of their own, since pairs of Python numbers
# cost 0.1 us each.
MANY_TOKENS = 256


def apply_masks(
    logits: Tensor,
    requests: Sequence[RequestState],
    token_masks: Mapping[int, TokenMask] = NO_MASKS,
) -> None:
    """Set to -inf, in place, what a row may not draw.

    That follows from the answer's form, allowed and banned tokens, bad words and ``min_tokens``.

    Args:
        logits: float32 [rows, vocab].
        requests: One per row.
        token_masks: By row, where the answer has a form.
    """
    apply_token_masks(logits, token_masks)
    masked = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        params = request.params
        if params.allowed_int64 is not None:
            _keep(logits[row], _token_ids(params.allowed_int64, logits))
        banned = memoryview(params.banned_int64).cast("q")
        if len(banned) > MANY_TOKENS:
            logits[row].index_fill_(0, _token_ids(params.banned_int64, logits), -torch.inf)
        else:
            masked.add(row, banned)
        masked.add(row, list(_bad_word_ends(request)))
        must_end = row in token_masks and token_masks[row].only_end
        if request.num_answer_tokens < request.params.min_tokens and not must_end:
            masked.add(row, request.stop_token_ids)
    if masked:
        logits[masked.index(logits.device)] = -torch.inf


def apply_logit_bias(logits: Tensor, requests: Sequence[RequestState]) -> None:
    """Add each request's ``logit_bias`` to its row of ``logits``, in place.

    ``logits`` are float32 [rows, vocab].
    """
    biased = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        bias = request.params.logit_bias
        biased.add(row, bias.keys(), bias.values())
    if biased:
        logits[biased.index(logits.device)] += biased.values(logits.device)


_MASKING = (
    "structured_outputs",
    "thinking_token_budget",
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
)


def nothing_left(request: RequestState) -> TwostrokeError:
    """The error for a row in which every token has the logit -inf.

    It says what masked them, and what to change.
    """
    params = request.params
    active = [name for name in _MASKING if getattr(params, name) not in (None, ())]
    if request.num_answer_tokens < params.min_tokens:
        active.append("min_tokens")
    if not active:
        return NonFiniteLogitsError(
            f"the model gave every token a logit of -inf at position {request.num_tokens}",
            hint="check the checkpoint and --dtype; the model itself produced these numbers",
        )
    return InvalidRequestError(
        f"no token can be drawn at position {request.num_tokens}: {' and '.join(active)} mask every"
        " one of them",
        param=active[0],
        hint=(
            "allow at least one token that is not banned, that ends no bad word, and that does not"
            " stop the answer before min_tokens"
        ),
    )


def _token_ids(ascending: bytearray, logits: Tensor) -> Tensor:
    """The ascending ids that have a logit, int64 [ids], on the logits' device."""
    count = bisect_left(memoryview(ascending).cast("q"), logits.shape[1])
    if not count:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    return moved(torch.frombuffer(ascending, dtype=torch.int64, count=count), logits.device)


def _keep(row: Tensor, token_ids: Tensor) -> None:
    """Set all of ``row``, float32 [vocab], to -inf in place, but for these tokens."""
    kept = row[token_ids]  # a copy
    row.fill_(-torch.inf)
    row[token_ids] = kept


def _bad_word_ends(request: RequestState) -> Iterator[int]:
    """Last tokens of those bad words whose other tokens are the end of the output."""
    last = request.token_ids[-1]
    for word in request.spec.bad_words_token_ids:
        num_before = len(word) - 1
        # Most words are out after one comparison: there may be hundreds, of hundreds of tokens
        # each.
        if 0 < num_before <= request.num_answer_tokens and word[-2] == last:
            if tuple(request.token_ids[-num_before:]) == word[:-1]:
                yield word[-1]
        elif num_before == 0:
            yield word[0]
