"""Which experts a token goes to, and with which weights."""

from __future__ import annotations

import torch
from torch import Tensor

from twostroke.model_spec.routing import RoutingSpec


def route(
    logits: Tensor, routing: RoutingSpec, per_token: int, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Choose experts.

    Args:
        logits: The router's outputs, float32 ``[tokens, experts]``.
        correction: Added to the scores to choose by, float32 ``[experts]`` (DeepSeek-V3,
            arXiv:2412.19437, section 2.1.2).

    Returns:
        (experts, int64; weights, float32), both ``[tokens, per_token]``, the best first.
    """
    scores = logits.softmax(-1) if routing.scores == "softmax" else logits.sigmoid()
    # Scores near 1 may be equal where what they come from is not.
    choice = logits if correction is None and routing.scores == "sigmoid" else scores
    if correction is not None:
        choice = scores + correction
    if routing.groups > 1:
        choice = _within_best_groups(choice, routing)
    chosen = choice.topk(per_token, -1).indices
    weights = scores.gather(-1, chosen)
    if routing.normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights * routing.scale if routing.scale != 1.0 else weights


def _within_best_groups(choice: Tensor, routing: RoutingSpec) -> Tensor:
    """Scores outside of a token's best groups are lowest (DeepSeek-V2, arXiv:2405.04434)."""
    grouped = choice.view(len(choice), routing.groups, -1)  # [tokens, groups, experts of one]
    best = min(2, grouped.shape[-1]) if routing.best_two else 1
    ranks = grouped.topk(best, -1).values.sum(-1)  # [tokens, groups]
    kept = ranks.topk(routing.chosen_groups, -1).indices
    hidden = torch.ones_like(ranks, dtype=torch.bool).scatter_(1, kept, False)
    return grouped.masked_fill(hidden[..., None], float("-inf")).flatten(1)
