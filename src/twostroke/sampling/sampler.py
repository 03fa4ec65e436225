"""From a step's logits to one token per row, over the whole batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from twostroke.sampling.batch_parameters import (
    min_weights,
    scale,
    top_k_of,
    truncates,
    truncation_of,
    uniforms_of,
)
from twostroke.sampling.begun_draw import NON_FINITE, BegunDraw
from twostroke.sampling.device_draws import DeviceDraws
from twostroke.sampling.drawing import draw, draw_truncated, first_width
from twostroke.sampling.editing import edit_logits
from twostroke.sampling.penalties import apply_penalties
from twostroke.sampling.report import NO_TOKEN, DrawReport, SamplerOutput
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.token_masks import NO_MASKS, TokenMask
from twostroke.sampling.transfer import start_transfer, to_tensor


def takes_likeliest(request: RequestState) -> bool:
    """Whether a draw is the maximum of the model's own logits."""
    return request.params.greedy and not request.edits_logits


Peaks = Callable[[Tensor], tuple[Tensor, Tensor]]


def torch_peaks(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row of ``[rows, n]``, and its lowest index, ``[rows]`` each."""
    highest, tokens = logits.max(dim=-1)
    return highest, tokens


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
        draws: Kernels that draw in PyTorch's place; then nothing is waited for before ``finish``.
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device | str,
        peaks: Peaks | None = None,
        draws: DeviceDraws | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self._peaks = peaks or torch_peaks
        self._draws = draws

    def draws_in_place(self, request: RequestState) -> bool:
        """Whether nothing of the size of its logits is made for a draw."""
        return self._draws is not None or takes_likeliest(request)

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        requests: Sequence[RequestState],
        token_masks: Mapping[int, TokenMask] = NO_MASKS,
    ) -> SamplerOutput:
        """One token for each row: ``begin``, and wait."""
        return self.begin(logits, requests, token_masks).finish() if requests else SamplerOutput([])

    @torch.inference_mode()
    def begin(
        self,
        logits: Tensor,
        requests: Sequence[RequestState],
        token_masks: Mapping[int, TokenMask] = NO_MASKS,
    ) -> BegunDraw:
        """Begin to draw a token for each row, at position ``request.num_tokens``.

        Args:
            logits: float32 [rows, vocab]; changed in place. -inf is fine.
            requests: One per row; not changed. Ids outside the vocabulary in masks and biases have
                no effect.
            token_masks: By row, what the answer's form allows.
        """
        assert logits.shape == (len(requests), self.vocab_size) and logits.dtype == torch.float32
        report = DrawReport(logits, requests)
        highest, tokens = self._peaks(logits)
        failed = ~(highest < torch.inf)  # NaN is not less, either
        if not all(map(takes_likeliest, requests)):
            if self._draws is None and bool(failed.any()):
                logits[failed] = -torch.inf
            if any(request.edits_logits for request in requests):
                penalize = apply_penalties if self._draws is None else self._draws.penalize
                edit_logits(logits, requests, token_masks, penalize)
                highest, tokens = self._peaks(logits)
            highest = highest.masked_fill(failed, -torch.inf)
            self._draw(logits, highest, tokens, requests)
        tokens.masked_fill_(highest == -torch.inf, NO_TOKEN)
        tokens.masked_fill_(failed, NON_FINITE)
        return BegunDraw(tokens, report, start_transfer(tokens))

    def _draw(
        self, logits: Tensor, highest: Tensor, tokens: Tensor, requests: Sequence[RequestState]
    ) -> None:
        """Put a drawn token in place of the likeliest, in rows that are not greedy.

        Args:
            logits: float32 [rows, vocab] after all filters before temperature; not changed.
            highest: The highest logit of each row.
            tokens: int64 [rows], the likeliest of each; changed in place.
        """
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if not drawn:
            return
        everywhere = len(drawn) == len(requests)
        index = slice(None) if everywhere else to_tensor(drawn, torch.int64, self.device)
        if self._draws is not None:
            tokens[index] = self._draws.draw(logits, highest, drawn, requests)
            return
        own = [requests[row] for row in drawn]
        tokens[index] = self._draw_by_chance(logits[index], highest[index], own)

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
