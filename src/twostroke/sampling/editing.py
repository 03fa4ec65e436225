"""The filters before temperature: masks, logit bias, penalties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from twostroke.sampling.masks import apply_logit_bias, apply_masks
from twostroke.sampling.penalties import apply_penalties
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import NO_MASKS, TokenMask


def edit_logits(
    logits: Tensor,
    requests: Sequence[RequestState],
    token_masks: Mapping[int, TokenMask] = NO_MASKS,
    penalize: Callable[[Tensor, Sequence[RequestState]], None] = apply_penalties,
) -> None:
    """All filters before temperature, in place: masks, logit bias, penalties.

    Args:
        logits: float32 [rows, vocab].
        requests: One per row.
        token_masks: By row, where the answer has a form.
        penalize: Another way to do what ``apply_penalties`` does.
    """
    apply_masks(logits, requests, token_masks)
    apply_logit_bias(logits, requests)
    penalize(logits, requests)
