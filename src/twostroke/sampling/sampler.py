"""From a step's logits to one token per row, over the whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.core.sampling_params import SamplingParams
from twostroke.sampling.drawing import WEIGHT_UNIT, Truncation, draw, draw_truncated, first_width
from twostroke.sampling.logprobs import position_logprobs
from twostroke.sampling.masks import apply_logit_bias, apply_masks, nothing_left
from twostroke.sampling.penalties import apply_penalties
from twostroke.sampling.random import uniforms
from twostroke.sampling.request_state import RequestState

# Below this a temperature is greedy for all practical purposes, and dividing by it would lose the
# zeros to underflow.
MIN_TEMPERATURE = 1e-20
NO_TOKEN = -1


Peaks = Callable[[Tensor], tuple[Tensor, Tensor]]


def torch_peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row of ``[rows, n]``, and its lowest index, ``[rows]`` each."""
    highest, tokens = logits.max(dim=-1)
    return highest, tokens


@dataclass(slots=True)
class SamplerOutput:
    """What was drawn, by row.

    Attributes:
        token_ids: One per row; ``NO_TOKEN`` (-1) for the rows in ``errors`` and ``non_finite``.
        logprobs: For the rows that ask for them, of the raw logits.
        errors: Rows in which every token was masked.
        non_finite: Rows with NaN or +inf among their logits, whatever masks hide.
    """

    token_ids: list[int]
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    errors: dict[int, TwostrokeError] = field(default_factory=dict)
    non_finite: list[int] = field(default_factory=list)


class Sampler:
    """Draws the next token of each request. It keeps no state between calls.

    A row's token depends on its logits, its parameters, its tokens and its seed, never on the other
    rows: all arithmetic is row-wise, sums of probabilities are exact (``drawing.py``), and each row
    spends one uniform keyed by its seed and position
    (docs/decisions/0002-sampling-by-inverse-cdf.md).

    Args:
        vocab_size: Columns of the logits.
        device: Where the logits are.
        peaks: Finds each row's maximum and its first index, faster than PyTorch does.
    """

    def __init__(
        self, vocab_size: int, device: torch.device | str, peaks: Peaks | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._peaks = peaks or torch_peaks

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[RequestState]) -> SamplerOutput:
        """One token for each row, drawn at position ``len(request.token_ids)``.

        Args:
            logits: float32 [rows, vocab]; changed in place. -inf is fine.
            requests: One per row; not changed. Ids outside the vocabulary in masks and biases have
                no effect.
        """
        assert logits.shape == (len(requests), self.vocab_size) and logits.dtype == torch.float32
        if not requests:
            return SamplerOutput([])
        asking = [
            row for row, request in enumerate(requests) if request.params.logprobs is not None
        ]
        raw = logits[asking] if asking else logits[:0]  # a copy, of these rows only
        highest, tokens = self._peaks(logits)  # [rows] each; the lowest id among equals
        non_finite = [
            row for row, value in enumerate(highest.tolist()) if not value < math.inf
        ]  # NaN is not, either
        if any(request.edits_logits for request in requests):
            apply_masks(logits, requests)
            apply_logit_bias(logits, requests)
            apply_penalties(logits, requests)
            highest, tokens = self._peaks(logits)
        if non_finite:
            logits[non_finite] = highest[non_finite] = -torch.inf
            raw[[place for place, row in enumerate(asking) if row in non_finite]] = 0
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if drawn:
            everywhere = len(drawn) == len(requests)
            index = slice(None) if everywhere else torch.tensor(drawn, device=self.device)
            tokens[index] = self._draw(
                logits[index], highest[index], [requests[row] for row in drawn]
            )
        token_ids: list[int] = tokens.masked_fill(highest == -torch.inf, NO_TOKEN).tolist()
        failed = [row for row, token in enumerate(token_ids) if token == NO_TOKEN]
        errors = {row: nothing_left(requests[row]) for row in failed if row not in non_finite}
        # A failed row has no token to report on, but keeps its place in `raw`: any token will do
        # there.
        num_top = [requests[row].params.logprobs or 0 for row in asking]
        entries = position_logprobs(raw, [max(token_ids[row], 0) for row in asking], num_top)
        logprobs = {row: entry for row, entry in zip(asking, entries) if token_ids[row] != NO_TOKEN}
        return SamplerOutput(token_ids, logprobs, errors, non_finite)

    def _draw(self, logits: Tensor, highest: Tensor, requests: Sequence[RequestState]) -> Tensor:
        """Temperature, top-k, top-p, min-p and the draw, for rows that are not greedy.

        Args:
            logits: float32 [rows, vocab] after all earlier filters; not changed.
            highest: float32 [rows], their maxima.
            requests: One per row.

        Returns:
            Token ids, int64 [rows]; any token where all logits are -inf.
        """
        params = [request.params for request in requests]
        temperatures = self._tensor(
            [max(p.temperature, MIN_TEMPERATURE) for p in params], torch.float32
        )
        # A finite stand-in for a maximum of -inf keeps -inf - -inf, which is NaN, out of a row that
        # has failed.
        highest = highest.clamp(min=torch.finfo(torch.float32).min)
        # Subtracting first: no temperature, however low, can then overflow the likeliest token.
        scaled = (logits - highest.unsqueeze(1)).div_(temperatures.unsqueeze(1))  # [rows, vocab]
        seeds = np.array([request.seed & (2**64 - 1) for request in requests], dtype=np.uint64)
        positions = np.array([request.num_tokens for request in requests], dtype=np.int64)
        shares = torch.from_numpy(uniforms(seeds, positions)).to(self.device)  # [rows]
        min_weight = self._tensor([math.ceil(p.min_p * WEIGHT_UNIT) for p in params], torch.int64)
        truncated = [row for row, p in enumerate(params) if self._truncates(p)]
        if len(truncated) < len(params):
            uses_min_p = any(p.min_p > 0 for p in params)
            tokens = draw(scaled, shares, min_weight if uses_min_p else None)
        else:
            tokens = torch.empty(len(params), dtype=torch.int64, device=self.device)
        if truncated:
            whole = len(truncated) == len(params)
            index = slice(None) if whole else torch.tensor(truncated, device=self.device)
            top_k = [self._top_k(params[row]) for row in truncated]
            truncation = Truncation(
                self._tensor(top_k, torch.int64),
                self._tensor([params[row].top_p for row in truncated], torch.float64),
                min_weight[index],
                bounded=max(top_k) < self.vocab_size,
            )
            tokens[index] = draw_truncated(
                scaled[index], shares[index], truncation, first_width(top_k)
            )
        return tokens

    def _top_k(self, params: SamplingParams) -> int:
        return min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size

    def _truncates(self, params: SamplingParams) -> bool:
        """Whether the row's tokens have to be put in order; min-p alone does not need that."""
        return params.top_p < 1 or self._top_k(params) < self.vocab_size

    def _tensor(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device, non_blocking=True)
