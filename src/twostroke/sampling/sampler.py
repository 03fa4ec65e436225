"""From a step's logits to one token per row, over the whole batch at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
from twostroke.sampling.editing import edit_logits
from twostroke.sampling.logprobs import logprobs_of, position_logprobs
from twostroke.sampling.masks import nothing_left
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import NO_MASKS, TokenMask

NO_TOKEN = -1
_NON_FINITE = -2  # in place of a token, until it is on the host


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
        raw_logits: float32 [1, vocab], copies, of the rows that draw their answer's first token and
            whose request asks for its distribution.
        errors: Rows in which every token was masked.
        non_finite: Rows with NaN or +inf among their logits, whatever masks hide.
    """

    token_ids: list[int]
    logprobs: dict[int, PositionLogprobs] = field(default_factory=dict)
    raw_logits: dict[int, Tensor] = field(default_factory=dict)
    errors: dict[int, TwostrokeError] = field(default_factory=dict)
    non_finite: list[int] = field(default_factory=list)


class Sampler:
    """Draws the next token of each request. It keeps no state between calls.

    A row's token depends on its logits, its parameters, its tokens and its seed, never on the other
    rows: all arithmetic is row-wise, sums of probabilities are exact (``drawing.py``), and each row
    spends one uniform keyed by its seed and position
    (docs/decisions/0004-an-answer-depends-on-its-request-alone.md).

    Args:
        vocab_size: Columns of the logits.
        device: Where the logits are.
        peaks: Finds each row's maximum and its first index, faster than PyTorch does.
        read: Brings drawn tokens to the host, int64 [rows]; called once for each call of
            ``sample``, when they are on the device or about to be.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        peaks: Peaks | None = None,
        read: Callable[[Tensor], list[int]] = Tensor.tolist,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._peaks = peaks or torch_peaks
        self._read = read

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
        report = _Report(logits, requests)
        if all(request.params.greedy and not request.edits_logits for request in requests):
            return report.finish(self._take_likeliest(logits, report))
        peaks = self._edit(logits, requests, token_masks, report)
        tokens = self._draw(logits, peaks, requests)
        return report.finish(tokens)

    def _take_likeliest(self, logits: Tensor, report: _Report) -> list[int]:
        """The likeliest token of each row, with one transfer to the host."""
        highest, tokens = self._peaks(logits)
        tokens.masked_fill_(highest == -torch.inf, NO_TOKEN)
        tokens.masked_fill_(~(highest < torch.inf), _NON_FINITE)  # NaN is not less, either
        token_ids = self._read(tokens)
        if _NON_FINITE in token_ids:
            report.rule_out([row for row, token in enumerate(token_ids) if token == _NON_FINITE])
            token_ids = [max(token, NO_TOKEN) for token in token_ids]
        return token_ids

    def _edit(
        self,
        logits: Tensor,
        requests: Sequence[RequestState],
        token_masks: Mapping[int, TokenMask],
        report: _Report,
    ) -> tuple[Tensor, Tensor]:
        """Apply all filters before temperature, and rule out rows that are not finite, in place.

        Returns:
            The maxima of the rows, and their tokens, [rows] each; the lowest id among equals.
        """
        highest, tokens = self._peaks(logits)
        non_finite = [
            row for row, value in enumerate(highest.tolist()) if not value < math.inf
        ]  # NaN is not, either
        if any(request.edits_logits for request in requests):
            edit_logits(logits, requests, token_masks)
            highest, tokens = self._peaks(logits)
        if non_finite:
            logits[non_finite] = highest[non_finite] = -torch.inf
            report.rule_out(non_finite)
        return highest, tokens

    def _draw(
        self, logits: Tensor, peaks: tuple[Tensor, Tensor], requests: Sequence[RequestState]
    ) -> list[int]:
        """The likeliest token of greedy rows, a drawn one of the others.

        Args:
            logits: float32 [rows, vocab] after all filters before temperature; not changed.
            peaks: The highest logit of each row, and its token; changed in place.

        Returns:
            A token for each row, ``NO_TOKEN`` where all logits are -inf.
        """
        highest, tokens = peaks
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if drawn:
            everywhere = len(drawn) == len(requests)
            index = slice(None) if everywhere else torch.tensor(drawn, device=self.device)
            tokens[index] = self._draw_by_chance(
                logits[index], highest[index], [requests[row] for row in drawn]
            )
        return self._read(tokens.masked_fill(highest == -torch.inf, NO_TOKEN))

    def _draw_by_chance(
        self, logits: Tensor, highest: Tensor, requests: Sequence[RequestState]
    ) -> Tensor:
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
        uniforms = uniforms_of(requests, self.device)  # [rows]
        least = min_weights(params, self.device)  # [rows]
        truncated = [row for row, p in enumerate(params) if truncates(p, self.vocab_size)]
        if len(truncated) < len(params):
            uses_min_p = any(p.min_p > 0 for p in params)
            tokens = draw(scaled, uniforms, least if uses_min_p else None)
        else:
            tokens = torch.empty(len(params), dtype=torch.int64, device=self.device)
        if truncated:
            whole = len(truncated) == len(params)
            index = slice(None) if whole else torch.tensor(truncated, device=self.device)
            own = [params[row] for row in truncated]
            tokens[index] = draw_truncated(
                scaled[index],
                uniforms[index],
                truncation_of(own, least[index], self.vocab_size),
                first_width([top_k_of(p, self.vocab_size) for p in own]),
            )
        return tokens


class _Report:
    """What answers tell of their draws beside the token: kept of the raw logits, told at the end.

    Args:
        logits: float32 [rows, vocab], before any filter.
        requests: One per row.
    """

    def __init__(self, logits: Tensor, requests: Sequence[RequestState]) -> None:
        self._requests = requests
        self._asking = [
            row for row, request in enumerate(requests) if request.params.logprobs is not None
        ]
        # Copies, of these rows only.
        self._raw = logits[self._asking] if self._asking else logits[:0]
        self._shown = {
            row: logits[row : row + 1].clone()
            for row, request in enumerate(requests)
            if request.shows_distribution
        }
        self._non_finite: list[int] = []

    def rule_out(self, rows: list[int]) -> None:
        """Rows with NaN or +inf: there is nothing to tell of them."""
        self._non_finite = rows
        self._raw[[place for place, row in enumerate(self._asking) if row in rows]] = 0

    def finish(self, token_ids: list[int]) -> SamplerOutput:
        """The output, given the tokens that were drawn, one per row."""
        failed = [row for row, token in enumerate(token_ids) if token == NO_TOKEN]
        return SamplerOutput(
            token_ids,
            self._logprobs(token_ids),
            {row: raw for row, raw in self._shown.items() if token_ids[row] != NO_TOKEN},
            {row: nothing_left(self._requests[row]) for row in failed if self._is_finite(row)},
            self._non_finite,
        )

    def _is_finite(self, row: int) -> bool:
        return row not in self._non_finite

    def _logprobs(self, token_ids: list[int]) -> dict[int, PositionLogprobs]:
        params = [self._requests[row].params for row in self._asking]
        num_top = [0 if each.logprob_token_ids else each.logprobs or 0 for each in params]
        # A failed row has no token to report on, but keeps its place: any token will do there.
        tokens = [max(token_ids[row], 0) for row in self._asking]
        entries = position_logprobs(self._raw, tokens, num_top)
        for place, each in enumerate(params):
            if each.logprob_token_ids:
                entries[place].top = logprobs_of(self._raw[place], each.logprob_token_ids)
        pairs = zip(self._asking, entries)
        return {row: entry for row, entry in pairs if token_ids[row] != NO_TOKEN}
