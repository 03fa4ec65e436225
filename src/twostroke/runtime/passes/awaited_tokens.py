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
    rows = [row for row, request in enumerate(batch.requests) if request.num_awaited]
    if not rows:
        return
    places = {before.shares[index].request_id: at for at, index in enumerate(draws.indices)}
    drawn = [places[batch.requests[row].request_id] for row in rows]
    at = [batch.query_start[row + 1] - 1 for row in rows]
    device = batch.token_ids.device
    tokens = draws.tokens[on_device(drawn, device)]
    # What failed has no token, but its row must have some; nothing of it is kept.
    batch.token_ids[on_device(at, device)] = tokens.clamp_min(0)
