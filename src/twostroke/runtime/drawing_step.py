"""The stage of a step that draws: tokens of all rows that ask for one, and drafts accepted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twostroke.core.errors import ErrorMessage
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.verification import Draw, begin_draws, verify_draws
from twostroke.sampling.begun_draw import BegunDraw
from twostroke.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class StepDraws:
    """What a step draws; the host has waited for nothing of it.

    Attributes:
        indices: The shares that draw.
        parts: Their draws, in order.
    """

    indices: list[int]
    parts: list[BegunDraw]

    @property
    def tokens(self) -> Tensor:
        """The tokens on the device, int64 [rows]; below 0 where there is none."""
        if len(self.parts) == 1:
            return self.parts[0].tokens
        return torch.cat([part.tokens for part in self.parts])


NO_DRAWS = StepDraws([], [])


def begin_step_draws(step: StepRun, hidden: Tensor, sampler: Sampler) -> StepDraws:
    """Begin to draw from ``hidden``, the rows of each of ``batch.sampling``.

    Args:
        hidden: ``[rows, hidden]``, one row for each share that draws, and one for each draft.
    """
    batch = step.batch
    step.masks = step.mask_source.take(step.result, step.clock.total())
    failed = [step.has_failed(batch.shares[index].request_id) for index in batch.sampling]
    indices = [index for index, bad in zip(batch.sampling, failed) if not bad]
    if not indices:
        return NO_DRAWS
    if any(failed):
        counts = [len(batch.drawn_rows(index)) for index in batch.sampling]
        hidden = hidden[[not bad for bad, count in zip(failed, counts) for _ in range(count)]]

    def logits_of(rows: slice) -> Tensor:
        return step.model.logits(hidden[rows])

    return StepDraws(indices, begin_draws(batch, indices, logits_of, sampler, step.masks))


def finish_step_draws(step: StepRun, draws: StepDraws) -> None:
    """Wait for the tokens, accept drafts, and put them into the step's result."""
    if not draws.indices:
        return
    for drawn in verify_draws(step.batch, draws.indices, draws.parts, step.accept):
        if not step.has_failed(step.batch.shares[drawn.index].request_id):
            _take(step, drawn)


def _take(step: StepRun, drawn: Draw) -> None:
    """Put one share's draw into the result, or end its request."""
    share, result = step.batch.shares[drawn.index], step.result
    if drawn.non_finite:
        step.fail(drawn.index)
    elif drawn.error is not None:
        step.end(share.request_id, ErrorMessage.of(drawn.error))
    else:
        result.token_ids[share.request_id] = drawn.token_ids
        if drawn.logprobs:
            result.logprobs[share.request_id] = drawn.logprobs
        if drawn.raw_logits is not None:
            step.raw_logits[share.request_id] = drawn.raw_logits
        if share.draft_token_ids:
            result.num_accepted_drafts[share.request_id] = drawn.num_accepted
    if drawn.bad_rows:
        step.kv.zero_slots(step.batch.attention.slots[drawn.bad_rows])
