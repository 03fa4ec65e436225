"""Repetition, presence and frequency penalties, computed for the tokens seen only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from twostroke.sampling.pairs import Pairs
from twostroke.sampling.request_state import RequestState


def apply_penalties(logits: Tensor, requests: Sequence[RequestState]) -> None:
    """Apply the three penalties to ``logits`` in place, row by row as each request asks for them.

    Counts are made from the request's tokens each time: no state to keep in step with preemption
    and abortion, at the price of one pass over the tokens (a few milliseconds for 100,000 of them)
    where a request asks for penalties.

    Args:
        logits: float32 [rows, vocab].
        requests: One per row.
    """
    _apply_repetition(logits, requests)
    _apply_presence_and_frequency(logits, requests)


def _apply_repetition(logits: Tensor, requests: Sequence[RequestState]) -> None:
    """The repetition penalty of Keskar et al. 2019 (CTRL), section 4.1.

    Negative logits are multiplied, as in all engines.
    """
    seen = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        penalty = request.params.repetition_penalty
        if penalty != 1:
            seen.add(row, set(request.token_ids), penalty)
    if seen:
        index, penalties = seen.index(logits.device), seen.values(logits.device)
        values = logits[index]  # [pairs]
        logits[index] = torch.where(values > 0, values / penalties, values * penalties)


def _apply_presence_and_frequency(logits: Tensor, requests: Sequence[RequestState]) -> None:
    """OpenAI's definition, over the output alone.

    It is ``logit -= presence * (count > 0) + frequency * count``.
    """
    presence, frequency = Pairs(logits.shape[1]), Pairs(logits.shape[1])
    counted = Pairs(logits.shape[1])
    for row, request in enumerate(requests):
        params = request.params
        if params.presence_penalty != 0 or params.frequency_penalty != 0:
            counts = Counter(request.answer_token_ids)
            counted.add(row, counts.keys(), counts.values())
            presence.add(row, counts.keys(), params.presence_penalty)
            frequency.add(row, counts.keys(), params.frequency_penalty)
    if counted:
        device = logits.device
        index = counted.index(device)
        values = logits[index] - presence.values(device)
        logits[index] = values - frequency.values(device) * counted.values(device)
