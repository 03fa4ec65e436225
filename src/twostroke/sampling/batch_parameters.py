"""What the draws of a batch need of its requests, as tensors with a row for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from twostroke.core.sampling_params import SamplingParams
from twostroke.sampling.drawing import WEIGHT_UNIT, Truncation
from twostroke.sampling.random import uniforms
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.transfer import moved, to_tensor

# Below this a temperature is greedy for all practical purposes, and dividing by it would lose the
# zeros to underflow.
MIN_TEMPERATURE = 1e-20


def scale(logits: Tensor, highest: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Logits relative to their row's maximum, divided by the temperature.

    Args:
        logits: float32 [rows, vocab] after all earlier filters; not changed.
        highest: float32 [rows], their maxima.
        params: One per row, none of them greedy.

    Returns:
        float32 [rows, vocab], with maximum 0 in each row, or -inf where all logits are.
    """
    temperatures = [max(p.temperature, MIN_TEMPERATURE) for p in params]
    divisors = to_tensor(temperatures, torch.float32, logits.device)
    # A finite stand-in for a maximum of -inf keeps -inf - -inf, which is NaN, out of a row that
    # has failed.
    highest = highest.clamp(min=torch.finfo(torch.float32).min)
    # Subtracting first: no temperature, however low, can then overflow the likeliest token.
    return (logits - highest.unsqueeze(1)).div_(divisors.unsqueeze(1))


def uniforms_of(requests: Sequence[RequestState], device: torch.device) -> Tensor:
    """The uniform number of each request's next draw, float64 [rows]."""
    seeds = np.array([request.spec.seed & (2**64 - 1) for request in requests], dtype=np.uint64)
    positions = np.array([request.num_tokens for request in requests], dtype=np.int64)
    return moved(torch.from_numpy(uniforms(seeds, positions)), device)


def min_weights(params: Sequence[SamplingParams], device: torch.device) -> Tensor:
    """The least weight that min-p keeps, int64 [rows]."""
    return to_tensor([math.ceil(p.min_p * WEIGHT_UNIT) for p in params], torch.int64, device)


def top_k_of(params: SamplingParams, vocab_size: int) -> int:
    """How many tokens top-k keeps; all of them where it is off."""
    return min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size


def truncates(params: SamplingParams, vocab_size: int) -> bool:
    """Whether a row's tokens have to be put in order; min-p alone does not need that."""
    return params.top_p < 1 or top_k_of(params, vocab_size) < vocab_size


def truncation_of(
    params: Sequence[SamplingParams], least_weights: Tensor, vocab_size: int
) -> Truncation:
    """Top-k, top-p and min-p of rows that truncate.

    Args:
        least_weights: ``min_weights`` of these rows.
    """
    device, top_k = least_weights.device, [top_k_of(p, vocab_size) for p in params]
    return Truncation(
        to_tensor(top_k, torch.int64, device),
        to_tensor([p.top_p for p in params], torch.float64, device),
        least_weights,
        bounded=max(top_k) < vocab_size,
    )
