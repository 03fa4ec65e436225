"""Log-probabilities and ranks of the raw logits, for sampled tokens and for prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.core.logprobs import PositionLogprobs, TokenLogprob
from twostroke.sampling.drawing import ranked

# Logits looked at together: bounds the temporary int64 keys to 32 MiB, however long the prompt.
CHUNK_LOGITS = 2**22
# Of one row: to sort it then costs less than to compare all of it with each token.
MANY_RANKS = 8


def prompt_logprobs(
    logits: Tensor, next_token_ids: list[int], num_top: int
) -> list[PositionLogprobs]:
    """Log-probabilities of the tokens that follow each position of a prompt.

    Args:
        logits: float32 [positions, vocab]; not changed.
        next_token_ids: The token after each position.
        num_top: How many of the likeliest tokens to list.

    Returns:
        One entry per position.
    """
    rows = max(1, CHUNK_LOGITS // logits.shape[1])
    result = []
    for start in range(0, len(next_token_ids), rows):
        part = next_token_ids[start : start + rows]
        result += position_logprobs(logits[start : start + rows], part, [num_top] * len(part))
    return result


def position_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[PositionLogprobs]:
    """Log-probability and rank of one token in each row, and of the row's likeliest ones.

    A rank is 1 plus the number of strictly likelier tokens, so equal tokens share one; the list of
    the likeliest has the lower token id first among equals.

    Args:
        logits: float32 [rows, vocab]; not changed. -inf is fine.
        token_ids: One per row.
        num_top: How many of the likeliest tokens to list, per row (at most the vocabulary).
    """
    if not token_ids:
        return []
    normalizers = logits.logsumexp(dim=-1, keepdim=True)  # [rows, 1]
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen_logits = logits.gather(1, chosen)
    chosen_logprobs = (chosen_logits - normalizers).squeeze(1).tolist()
    chosen_ranks = (1 + (logits > chosen_logits).sum(dim=-1)).tolist()
    width = min(max(num_top), logits.shape[1])
    top = ranked(logits, width) if width else chosen[:, :0]  # [rows, width]
    top_logits = logits.gather(1, top)
    tops = zip(top.tolist(), top_logits.tolist(), (top_logits - normalizers).tolist())
    return [
        PositionLogprobs(TokenLogprob(token, logprob, rank), _top_list(*columns)[:count])
        for token, logprob, rank, columns, count in zip(
            token_ids, chosen_logprobs, chosen_ranks, tops, num_top
        )
    ]


def logprobs_of(logits: Tensor, token_ids: Sequence[int]) -> list[TokenLogprob]:
    """Log-probabilities and ranks of given tokens, in their order.

    Args:
        logits: float32 [vocab]; not changed. -inf is fine.
    """
    wanted = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
    chosen = logits[wanted]  # [tokens]
    logprobs = (chosen - logits.logsumexp(dim=-1)).tolist()
    if len(token_ids) > MANY_RANKS:
        likelier = len(logits) - torch.searchsorted(logits.sort().values, chosen, right=True)
    else:
        likelier = (logits > chosen[:, None]).sum(dim=-1)
    ranks = (1 + likelier).tolist()
    return [TokenLogprob(*entry) for entry in zip(token_ids, logprobs, ranks)]


def _top_list(
    token_ids: list[int], logits: list[float], logprobs: list[float]
) -> list[TokenLogprob]:
    """Falling logits to ranked entries; equal logits share a rank."""
    result: list[TokenLogprob] = []
    for place, token in enumerate(token_ids):
        tied = place > 0 and logits[place] == logits[place - 1]
        result.append(TokenLogprob(token, logprobs[place], result[-1].rank if tied else place + 1))
    return result
