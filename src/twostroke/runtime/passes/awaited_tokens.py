"""Tokens that the pass before draws go into the next one on the device; the host has not seen them.

docs/decisions/0040-steps-are-launched-ahead.md.
"""

from __future__ import annotations

from twostroke.runtime.device import on_device
from twostroke.runtime.drawing_step import StepDraws
from twostroke.runtime.input_batch import Batch


def take_awaited(batch: Batch, before: Batch, draws: StepDraws) -> None:
    """Put tokens of the pass before into a batch that was built without them, on the device.

    Args:
        before: The batch that ``draws`` are of; it has no drafts.
    """
    waiting = [index for index, request in enumerate(batch.requests) if request.num_awaited]
    if not waiting:
        return
    draw_of = {before.shares[index].request_id: row for row, index in enumerate(draws.indices)}
    sources = [draw_of[batch.shares[index].request_id] for index in waiting]
    targets = [batch.query_start[index + 1] - 1 for index in waiting]
    device = batch.token_ids.device
    tokens = draws.tokens[on_device(sources, device)]
    # What failed has no token, but its row must have some; nothing of it is kept.
    batch.token_ids[on_device(targets, device)] = tokens.clamp_min(0)
