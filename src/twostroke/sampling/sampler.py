"""From a step's logits to one token per row, over the whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from twostroke.core.distribution import Distribution
from twostroke.core.errors import TwostrokeError
from twostroke.core.logprobs import PositionLogprobs
from twostroke.sampling.batch_parameters import (
    min_weights,
    scale,
    top_k_of,
    truncates,
    truncation_of,
    uniforms_of,
)
from twostroke.sampling.drawing import draw, draw_truncated, first_width
from twostroke.sampling.logprobs import logprobs_of, position_logprobs
from twostroke.sampling.masks import nothing_left
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.shaping import edit_logits, shaped_distribution
from twostroke.sampling.token_masks import NO_MASKS, TokenMask

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
        distributions: For the rows that ask for them and draw their answer's first token.
        errors: Rows in which every token was masked.
        non_finite: Rows with NaN or +inf among their logits, whatever masks hide.
    """

    token_ids: list[int]
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    distributions: dict[int, Distribution] = field(default_factory=dict)
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
    def sample(
        self,
        logits: Tensor,
        requests: Sequence[RequestState],
        token_masks: Mapping[int, TokenMask] = NO_MASKS,
    ) -> SamplerOutput:
        """One token for each row, drawn at position ``len(request.token_ids)``.

        Args:
            logits: float32 [rows, vocab]; changed in place. -inf is fine.
            requests: One per row; not changed. Ids outside the vocabulary in masks and biases have
                no effect.
            token_masks: By row, what the answer's form allows.
        """
        assert logits.shape == (len(requests), self.vocab_size) and logits.dtype == torch.float32
        if not requests:
            return SamplerOutput([])
        asking = [
            row for row, request in enumerate(requests) if request.params.logprobs is not None
        ]
        raw = logits[asking] if asking else logits[:0]  # a copy, of these rows only
        shown = {  # copies, too
            row: logits[row : row + 1].clone()
            for row, request in enumerate(requests)
            if request.shows_distribution
        }
        highest, tokens = self._peaks(logits)  # [rows] each; the lowest id among equals
        non_finite = [
            row for row, value in enumerate(highest.tolist()) if not value < math.inf
        ]  # NaN is not, either
        if any(request.edits_logits for request in requests):
            edit_logits(logits, requests, token_masks)
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
        num_top = [
            0 if params.logprob_token_ids else params.logprobs or 0
            for params in (requests[row].params for row in asking)
        ]
        entries = position_logprobs(raw, [max(token_ids[row], 0) for row in asking], num_top)
        for place, row in enumerate(asking):
            if listed := requests[row].params.logprob_token_ids:
                entries[place].top = logprobs_of(raw[place], listed)
        logprobs = {row: entry for row, entry in zip(asking, entries) if token_ids[row] != NO_TOKEN}
        distributions = {
            row: shaped_distribution(copy, requests[row], token_ids[row], token_masks.get(row))
            for row, copy in shown.items()
            if token_ids[row] != NO_TOKEN
        }
        return SamplerOutput(token_ids, logprobs, distributions, errors, non_finite)

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
        scaled = scale(logits, highest, params)  # [rows, vocab]
        shares = uniforms_of(requests, self.device)  # [rows]
        least = min_weights(params, self.device)  # [rows]
        truncated = [row for row, p in enumerate(params) if truncates(p, self.vocab_size)]
        if len(truncated) < len(params):
            uses_min_p = any(p.min_p > 0 for p in params)
            tokens = draw(scaled, shares, least if uses_min_p else None)
        else:
            tokens = torch.empty(len(params), dtype=torch.int64, device=self.device)
        if truncated:
            whole = len(truncated) == len(params)
            index = slice(None) if whole else torch.tensor(truncated, device=self.device)
            own = [params[row] for row in truncated]
            tokens[index] = draw_truncated(
                scaled[index],
                shares[index],
                truncation_of(own, least[index], self.vocab_size),
                first_width([top_k_of(p, self.vocab_size) for p in own]),
            )
        return tokens
