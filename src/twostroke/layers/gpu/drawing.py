"""Draws on a GPU, see ``DeviceDraws``: nothing that it launches is waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from twostroke.kernels.triton.drawing import (
    end_search,
    narrow,
    penalize_pairs,
    pick_tokens,
    weigh,
)
from twostroke.layers.gpu.operators import GpuOperators
from twostroke.sampling.batch_parameters import (
    MIN_TEMPERATURE,
    min_weights,
    top_k_of,
    uniforms_of,
)
from twostroke.sampling.pairs import Pairs
from twostroke.sampling.request_state import RequestState
from twostroke.sampling.transfer import to_tensor

# Tokens of a row that a program takes, and at once; constants, but no sum depends on them.
_CHUNK, _TILE, _WIDE_TILE = 8192, 256, 1024
_STEPS, _FIELDS = 8, 4  # of a search, see ``kernels.triton.drawing``
_PAIRS = 1024  # of a program
_ALL_DEPTHS = 2**31 - 1  # below it lies every token


class GpuDraws:
    """Penalties and draws by the kernels of ``kernels/triton/drawing.py``."""

    def __init__(self, operators: GpuOperators) -> None:
        self._overlaps = operators.overlaps

    def penalize(self, logits: Tensor, requests: Sequence[RequestState]) -> None:
        """What ``apply_penalties`` does, by one kernel and with the same bits."""
        seen, device = Pairs(logits.shape[1]), logits.device
        for row, request in enumerate(requests):
            params = request.params
            counts: dict[int, int] = {}
            if params.repetition_penalty != 1:
                counts = dict.fromkeys(request.token_ids, 0)
            if params.presence_penalty != 0 or params.frequency_penalty != 0:
                counts |= Counter(request.answer_token_ids)
            seen.add(row, counts.keys(), counts.values())
        if not seen:
            return
        rows, tokens = seen.index(device)
        penalties = [
            (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
            for p in (request.params for request in requests)
        ]
        factors = [to_tensor(each, torch.float32, device) for each in zip(*penalties)]
        # Products and differences are rounded one by one, as on a CPU.
        penalize_pairs[triton.cdiv(len(seen), _PAIRS),](
            logits, rows, tokens, seen.values(device), *factors, len(seen), logits.stride(0),
            _PAIRS, self._overlaps, enable_fp_fusion=False, launch_pdl=self._overlaps,
        )  # fmt: skip

    def draw(
        self, logits: Tensor, highest: Tensor, rows: Sequence[int], requests: Sequence[RequestState]
    ) -> Tensor:
        """Temperature, top-k, top-p, min-p and the draw, see ``DeviceDraws``."""
        device, vocab = logits.device, logits.shape[1]
        params = [requests[row].params for row in rows]
        chosen = to_tensor(rows, torch.int64, device)
        temperatures = [max(p.temperature, MIN_TEMPERATURE) for p in params]
        step = _Step(
            logits,
            chosen,
            highest[chosen].clamp(min=torch.finfo(torch.float32).min),
            to_tensor(temperatures, torch.float32, device),
            torch.empty(len(rows), 3, dtype=torch.int64, device=device),
        )
        step.kept.fill_(_ALL_DEPTHS)
        self._truncate(step, [top_k_of(p, vocab) for p in params], [p.top_p for p in params])
        least, chunks = min_weights(params, device), triton.cdiv(vocab, _CHUNK)
        parts = torch.empty(len(rows), chunks, 2, dtype=torch.int64, device=device)
        tokens = torch.empty(len(rows), dtype=torch.int64, device=device)
        uniforms = uniforms_of([requests[row] for row in rows], device)
        sizes = vocab, logits.stride(0), chunks, _CHUNK, _WIDE_TILE
        options = {"num_warps": 4, "launch_pdl": self._overlaps}
        weigh[len(rows), chunks](*step, least, parts, *sizes, self._overlaps, **options)
        width = triton.next_power_of_2(chunks)
        pick_tokens[len(rows),](
            *step, least, parts, uniforms, tokens, *sizes, width, self._overlaps, **options
        )
        return tokens

    def _truncate(self, step: _Step, top_k: Sequence[int], top_p: Sequence[float]) -> None:
        """Write which depth is the last that each row keeps, and how many tokens at it."""
        device, rows, vocab = step.logits.device, len(top_k), step.logits.shape[1]
        counts = to_tensor(top_k, torch.int64, device)
        shares = to_tensor(top_p, torch.float64, device)
        by_count, by_weight = min(top_k) < vocab, min(top_p) < 1
        chunks = triton.cdiv(vocab, _CHUNK)
        width = triton.next_power_of_2(chunks)
        for is_by_weight in [False] * by_count + [True] * by_weight:
            searches = torch.empty(_STEPS, rows, _FIELDS, dtype=torch.int64, device=device)
            sums = torch.empty(_STEPS, rows, chunks, 2, 16, dtype=torch.int64, device=device)
            tables = counts, shares, step.kept, searches, sums
            form = width, is_by_weight, by_count, self._overlaps
            for number in range(_STEPS):
                narrow[rows, chunks](
                    *step[:4], *tables, number, vocab, step.logits.stride(0), rows, chunks, _CHUNK,
                    _TILE, *form, num_warps=4, launch_pdl=self._overlaps,
                )  # fmt: skip
            end_search[rows,](*tables, rows, chunks, *form, num_warps=1, launch_pdl=self._overlaps)


class _Step(NamedTuple):
    """What all kernels of a draw read first, see ``narrow``."""

    logits: Tensor
    rows: Tensor
    highest: Tensor
    temperatures: Tensor
    kept: Tensor
