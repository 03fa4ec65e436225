"""Drawing by inverse CDF, with top-k, top-p and min-p, in exact integer arithmetic.

A token's weight is its probability relative to the likeliest token's, as an integer in units of
2**-40. Integer sums are the same in any order, so neither a kernel's way of scanning a row, nor the
number of rows, nor the path taken below can change a draw. What is likelier comes first; among
equals the lower token id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# The likeliest token's weight. A vocabulary of 2**22 equal tokens still sums up to less than 2**63.
WEIGHT_UNIT = 2.0**40
# How many candidates to look at first, and how many times more if these do not hold enough
# probability.
_FIRST_WIDTH, _MAX_FIRST_WIDTH, WIDENING = 64, 1024, 16


@dataclass(frozen=True, slots=True)
class Truncation:
    """Which tokens of each row can be drawn.

    Attributes:
        top_k: int64 [rows], from 1 to vocab (which keeps all).
        top_p: float64 [rows], in (0, 1].
        min_weight: int64 [rows]: tokens of less weight are dropped.
        bounded: Every ``top_k`` is below the vocabulary; the weight of whole rows is then not
            needed.
    """

    top_k: Tensor
    top_p: Tensor
    min_weight: Tensor
    bounded: bool

    def select(self, rows: Tensor) -> Truncation:
        return Truncation(self.top_k[rows], self.top_p[rows], self.min_weight[rows], self.bounded)


def weights_of(scaled: Tensor) -> Tensor:
    """Weights, int64 [rows, n], of ``scaled`` logits, float32 [rows, n] with row maxima of 0."""
    return scaled.exp().mul_(WEIGHT_UNIT).to(torch.int64)


def pick(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index at which the running sum of the weights first exceeds the uniform's share of their sum.

    Exact at both ends: an index of weight zero is never picked, for the running sum does not grow
    there, and the target is less than the sum. Rows whose weights are all zero give 0.

    Args:
        weights: int64 [rows, n].
        uniforms: float64 [rows], in [0, 1).

    Returns:
        int64 [rows].
    """
    cumulative = weights.cumsum(dim=-1)  # [rows, n]
    total = cumulative[:, -1]
    target = (uniforms * total.to(torch.float64)).to(torch.int64)
    # Above 2**53 the product may be rounded up to the total itself.
    target = torch.minimum(target, total - 1)
    return torch.searchsorted(cumulative, target.unsqueeze(1), right=True).squeeze(1)


def draw(scaled: Tensor, uniforms: Tensor, min_weight: Tensor | None) -> Tensor:
    """Draw from whole rows, without a sort.

    Args:
        scaled: float32 [rows, vocab], maximum 0 in each row.
        uniforms: float64 [rows].
        min_weight: int64 [rows], or ``None`` where no row uses min-p.

    Returns:
        Token ids, int64 [rows].
    """
    weights = weights_of(scaled)
    if min_weight is not None:
        weights.masked_fill_(weights < min_weight.unsqueeze(1), 0)
    return pick(weights, uniforms)


def first_width(top_k: Sequence[int]) -> int:
    """How many candidates to look at first: enough for every top-k up to 1024.

    Only larger ones and wide nuclei then need a second attempt.
    """
    return max([_FIRST_WIDTH, *(k for k in top_k if k <= _MAX_FIRST_WIDTH)])


def draw_truncated(scaled: Tensor, uniforms: Tensor, truncation: Truncation, width: int) -> Tensor:
    """Draw under top-k, then top-p, then min-p.

    Only the likeliest ``width`` tokens are put in order; a row whose nucleus turns out to be wider
    is tried again with more. Which attempt answers cannot be seen in the result.

    Args:
        scaled: float32 [rows, vocab], maximum 0 in each row.
        uniforms: float64 [rows].
        truncation: Its tensors are [rows].
        width: Candidates in the first attempt (``first_width``).

    Returns:
        Token ids, int64 [rows].
    """
    vocab = scaled.shape[1]
    width = min(width, vocab)
    candidates = ranked(scaled, width)  # [rows, width], likeliest first
    weights = weights_of(scaled.gather(1, candidates))
    whole = width == vocab or truncation.bounded
    totals = (weights if whole else weights_of(scaled)).sum(dim=-1)  # [rows]
    weights, decided = _truncate(weights, totals, truncation, vocab)
    # Back into the order of the vocabulary, in which the uniform is spent.
    candidates, order = candidates.sort(dim=-1)
    picked = pick(weights.gather(1, order), uniforms)
    tokens = candidates.gather(1, picked.unsqueeze(1)).squeeze(1)
    open_rows = (~decided).nonzero().squeeze(1)
    if len(open_rows):
        tokens[open_rows] = draw_truncated(
            scaled[open_rows], uniforms[open_rows], truncation.select(open_rows), width * WIDENING
        )
    return tokens


def ranked(values: Tensor, width: int) -> Tensor:
    """Indices, int64 [rows, width], of the largest ``values``, float32 [rows, n].

    They are in falling order of values, lowest first among equals.

    ``torch.topk`` leaves the order of equal values open, so it is given distinct int64 keys
    instead: the value's bits above, the complement of the index below.
    """
    n = values.shape[1]
    bits = (values + 0.0).view(torch.int32)  # adding 0.0 turns -0.0 into 0.0, which it equals
    # A negative float's bits fall as it rises: flip all but the sign, and they order like integers.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = (ordered.to(torch.int64) << 32) | torch.arange(n - 1, -1, -1, device=values.device)
    if width >= n:
        return keys.sort(dim=-1, descending=True).indices
    return keys.topk(width, dim=-1).indices


def _truncate(
    weights: Tensor, totals: Tensor, truncation: Truncation, vocab: int
) -> tuple[Tensor, Tensor]:
    """Zero the weights that top-k, top-p and min-p drop.

    Args:
        weights: int64 [rows, width], falling.
        totals: int64 [rows]: each row's weight over the whole vocabulary; used where top-k is off.

    Returns:
        The remaining weights, and bool [rows]: whether ``width`` was enough to know them.
    """
    dropped, decided = dropped_by(weights, totals, truncation, vocab)
    return weights.masked_fill(dropped.top_k | dropped.top_p | dropped.min_p, 0), decided


class Dropped(NamedTuple):
    """What each filter drops of the candidates, bool [rows, width] each.

    A filter may name candidates that one before it has dropped.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def dropped_by(
    weights: Tensor, totals: Tensor, truncation: Truncation, vocab: int
) -> tuple[Dropped, Tensor]:
    """Which candidates each filter drops, and bool [rows]: whether there were enough to know.

    The arguments are those of ``_truncate``.
    """
    width, top_k = weights.shape[1], truncation.top_k
    by_top_k = torch.arange(width, device=weights.device) >= top_k.unsqueeze(1)
    weights = weights.masked_fill(by_top_k, 0)
    cumulative = weights.cumsum(dim=-1)
    # Top-p speaks of the probabilities after top-k.
    totals = torch.where(top_k < vocab, cumulative[:, -1], totals)
    needed = (truncation.top_p * totals.to(torch.float64)).ceil().to(torch.int64)  # [rows]
    decided = (top_k <= width) | ((top_k == vocab) & (cumulative[:, -1] >= needed))
    # A token stays if those before it do not reach top_p: so the first one always does.
    by_top_p = cumulative - weights >= needed.unsqueeze(1)
    by_min_p = weights < truncation.min_weight.unsqueeze(1)
    return Dropped(by_top_k, by_top_p, by_min_p), decided
