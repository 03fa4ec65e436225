"""The next pass over requests that decode, started before the host knows what they drew.

Between two passes the host reads the tokens, ends requests, plans the next step and builds its
tables, and a GPU would wait for all of that. But what the next step computes is nearly certain:
one more token of each request, the one that was just drawn and is on the device already. So that
pass is started at once, and runs while the host works. The plan then says what was right: shares
that were computed so are taken as they are, and all others are computed as if nothing had been
(docs/decisions/0040-the-executor-runs-ahead.md). A wrong guess writes only into slots that its
request owns and that come after its known tokens, where nothing is read; later writes come later
on the device, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.runtime.device import on_device
from twostroke.runtime.input_batch import Batch, InputBatch
from twostroke.runtime.live_requests import LiveRequests
from twostroke.runtime.passes.decode_graphs import DecodeGraphs


@dataclass(slots=True)
class _Pass:
    """One that was started ahead: a row for each request.

    Attributes:
        sources: Which shares of the batch before they come from.
        token_ids: What the rows were computed for; known once the host has read them.
        hidden: ``[rows, hidden]``.
        slots: Where the rows were written, int64 ``[rows]``, with groups ``[rows, groups]``.
    """

    rows: dict[str, int]
    sources: list[int]
    positions: list[int]
    hidden: Tensor
    slots: Tensor
    token_ids: Sequence[int] = ()


class RunAhead:
    """Starts passes, and gives out what they computed. Belongs to an executor.

    Args:
        inputs: Its block tables.
    """

    def __init__(self, graphs: DecodeGraphs, inputs: InputBatch) -> None:
        self._graphs, self._inputs = graphs, inputs
        self._pass: _Pass | None = None

    def start(self, batch: Batch, tokens: Tensor) -> None:
        """Start the pass after ``batch``, whose rows drew ``tokens``, int64 ``[rows]``.

        Only after steps in which each request computed one token and drew one; of requests that
        end with that token, or whose next block is not known, nothing is computed.
        """
        self._pass = None
        if len(batch.sampling) != len(batch.shares) or not self._graphs.takes(batch):
            return
        chosen = [index for index in range(len(batch.shares)) if self._goes_on(batch, index)]
        if not chosen:
            return
        shares = [batch.shares[index] for index in chosen]
        names, positions = [s.request_id for s in shares], [s.start + s.num_tokens for s in shares]
        attention = self._inputs.one_token_each(names, positions)
        if len(chosen) < len(batch.shares):
            tokens = tokens[self._inputs.to_device(np.array(chosen))]
        drawn = tokens.clamp_min(0)  # what failed has no token, but a row must have some
        at = self._inputs.to_device(np.array(positions))
        rows = {name: row for row, name in enumerate(names)}
        hidden = self._graphs.run(drawn, at, attention)
        self._pass = _Pass(rows, chosen, positions, hidden, attention.slots)

    def _goes_on(self, batch: Batch, index: int) -> bool:
        """Whether a request does not end with its token, as far as one knows, and has a slot."""
        share, request = batch.shares[index], batch.requests[index]
        most = request.params.max_tokens
        is_last = most is not None and request.num_answer_tokens + 1 >= most
        end = share.start + share.num_tokens
        return not is_last and end < self._inputs.num_slots(share.request_id)

    def tell(self, token_ids: Sequence[int]) -> None:
        """Say what the rows of the last batch drew, now that the host has read it."""
        if self._pass is not None:
            self._pass.token_ids = [token_ids[index] for index in self._pass.sources]

    def drop(self) -> Tensor | None:
        """Forget the pass. Returns the slots that it wrote."""
        dropped, self._pass = self._pass, None
        return None if dropped is None else dropped.slots

    def take(self, plan: StepPlan, requests: LiveRequests) -> tuple[dict[int, int], Tensor] | None:
        """What was computed of a plan: rows by the index of their share, and hidden states.

        ``None``: nothing. The pass counts for one plan.
        """
        started, self._pass = self._pass, None
        # A block that is copied may be one that the pass has written.
        if started is None or plan.block_copies:
            return None
        rows = {}
        for index, share in enumerate(plan.scheduled.values()):
            row = started.rows.get(share.request_id)
            if row is not None and self._is_of(share, row, started, plan, requests):
                rows[index] = row
        return (rows, started.hidden) if rows else None

    @staticmethod
    def _is_of(
        share: ScheduledRequest, row: int, started: _Pass, plan: StepPlan, requests: LiveRequests
    ) -> bool:
        """Whether a row is what the share computes: the same token, at the same place."""
        is_next = share.num_tokens == 1 and not share.draft_token_ids and share.samples
        if not is_next or share.request_id in plan.new_requests:  # with blocks of its own, then
            return False
        expected = (started.positions[row], [started.token_ids[row]])
        return (share.start, requests.input_tokens(share)) == expected


def put_together(batch: Batch, rows: dict[int, int], ahead: Tensor, rest: Tensor | None) -> Tensor:
    """Hidden states of the rows that are drawn from, in the order of the batch.

    Args:
        rows: By the index of a share, its row in ``ahead``.
        rest: Those of the other shares' rows.
    """
    order, next_of_rest = list[int](), len(ahead)
    for index in batch.sampling:
        if index in rows:
            order.append(rows[index])
        else:
            count = len(batch.drawn_rows(index))
            order += range(next_of_rest, next_of_rest + count)
            next_of_rest += count
    if rest is None and order == list(range(len(ahead))):
        return ahead
    whole = ahead if rest is None else torch.cat((ahead, rest))
    return whole[on_device(order, whole.device)]
