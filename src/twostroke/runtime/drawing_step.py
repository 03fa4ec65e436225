"""The stage of a step that draws: tokens of all rows that ask for one, and drafts accepted."""

from __future__ import annotations

from torch import Tensor

from twostroke.core.errors import ErrorMessage
from twostroke.runtime.step_run import StepRun
from twostroke.runtime.verification import Draw, draw_and_verify
from twostroke.sampling.sampler import Sampler


def draw_tokens(step: StepRun, hidden: Tensor, sampler: Sampler) -> None:
    """Draw from ``hidden``, the rows of each of ``batch.sampling``, and accept drafts.

    Args:
        hidden: ``[rows, hidden]``, one row for each share that draws, and one for each draft.
    """
    batch = step.batch
    step.masks = step.mask_source.take(step.result, step.clock.total())
    failed = [step.has_failed(batch.shares[index].request_id) for index in batch.sampling]
    indices = [index for index, bad in zip(batch.sampling, failed) if not bad]
    if not indices:
        return
    if any(failed):
        counts = [len(batch.drawn_rows(index)) for index in batch.sampling]
        hidden = hidden[[not bad for bad, count in zip(failed, counts) for _ in range(count)]]

    def logits_of(rows: slice) -> Tensor:
        return step.model.logits(hidden[rows])

    for drawn in draw_and_verify(batch, indices, logits_of, sampler, step.accept, step.masks):
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
