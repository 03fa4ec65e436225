"""Drafts of the target's multi-token-prediction head, which has one layer with a KV cache.

The cache lies in tensors of its own, in blocks of the target's ids. The head reads a last state of
the target for each token, and these are there in the pass that computes them only; so it reads
along with every pass, prompts included, and needs no state that a prefix hit has left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.core.step import StepPlan
from twostroke.layers.attention.base import AttentionBackend
from twostroke.models.multi_token_predictor import MultiTokenPredictor
from twostroke.spec_decode.base import Continuation, FinishedPass
from twostroke.spec_decode.draft_pass import DraftPass, make_draft_pass


class _Run(NamedTuple):
    """The rows of one share after which the next token is known.

    Attributes:
        start: Position of the first.
        row: The first, among those of the pass.
        following: The tokens after each.
    """

    start: int
    row: int
    following: list[int]


class MultiTokenProposer:
    """A ``Proposer``.

    Args:
        backend: Reads the head's own keys and values.
        copy_blocks: Copies whole blocks of these, (source, target), as the target's are copied.
        zero_slots: Zeroes slots [slots] of these.
        block_size: Tokens per block.
    """

    reads_all_rows = True

    def __init__(
        self,
        head: MultiTokenPredictor,
        backend: AttentionBackend,
        copy_blocks: Callable[[Sequence[tuple[int, int]]], None],
        zero_slots: Callable[[Tensor], None],
        block_size: int,
    ) -> None:
        self._head, self._backend = head, backend
        self._copy_blocks, self._zero_slots, self._block_size = copy_blocks, zero_slots, block_size

    def update(self, plan: StepPlan) -> None:
        for load in plan.block_loads:  # tiers keep the target's keys and values alone
            if not load.is_of_states:
                self._zero_blocks(load.block_ids)
        self._copy_blocks(plan.block_copies)

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        if step.states is None:
            return {}
        runs = {place: run for place, run in enumerate(_runs(step)) if run.following}
        if not runs:
            return {}
        table = step.block_table[[*runs]]
        rows = np.concatenate([run.row + np.arange(len(run.following)) for run in runs.values()])
        first = self._pass(
            [token for run in runs.values() for token in run.following],
            np.array([run.start for run in runs.values()]),
            np.array([len(run.following) for run in runs.values()]),
            table,
        )
        states = self._run(first, step.states[torch.from_numpy(rows).to(self._head.device)])
        going = sorted(step.continuations(), key=lambda each: -each.max_drafts)
        if not going:
            return {}
        places = [*runs]
        own = [places.index(each.place) for each in going]
        drafts = self._draft(going, states[own], first.ends[own], table[own])
        return {each.request.request_id: own for each, own in zip(going, drafts)}

    def _draft(
        self,
        going: Sequence[Continuation],
        states: Tensor,
        ends: NDArray[np.int64],
        table: NDArray[np.int32],
    ) -> list[list[int]]:
        """One pass after the other, each on the states and guesses of the one before.

        Args:
            going: Their ``max_drafts`` fall.
            states: ``[requests, hidden]``, what the head made of the last known token.
            ends: ``[requests]``, the position after that of the last state.
        """
        drafts = [[token] for token in self._head.likeliest(states)]
        for count in range(1, going[0].max_drafts):
            active = sum(each.max_drafts > count for each in going)
            step = self._pass(
                [own[-1] for own in drafts[:active]],
                ends[:active] + count - 1,
                np.ones(active, dtype=np.int64),
                table[:active],
            )
            states = self._run(step, states[:active])
            for own, token in zip(drafts, self._head.likeliest(states)):
                own.append(token)
        return drafts

    def _run(self, step: DraftPass, states: Tensor) -> Tensor:
        attention = self._backend.prepare(step.metadata)
        return self._head.forward(step.tokens, states, step.positions, attention, step.rows)

    def _pass(
        self,
        token_ids: Sequence[int],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        table: NDArray[np.int32],
    ) -> DraftPass:
        size, device = self._block_size, self._head.device
        return make_draft_pass(token_ids, starts, lengths, table, size, device)

    def _zero_blocks(self, block_ids: Sequence[int]) -> None:
        slots = np.array(block_ids)[:, None] * self._block_size + np.arange(self._block_size)
        self._zero_slots(torch.from_numpy(slots.flatten()).to(self._head.device))


def _runs(step: FinishedPass) -> list[_Run]:
    """The run of each share, without the rows of drafts that were not accepted."""
    runs, row = list[_Run](), 0
    for share, request in zip(step.plan.scheduled.values(), step.requests):
        drawn = step.token_ids.get(share.request_id, [])
        count = share.num_tokens - len(share.draft_token_ids) + max(len(drawn) - 1, 0)
        following = request.token_ids[share.start + 1 : share.start + 1 + count]
        following += drawn[: count - len(following)]
        runs.append(_Run(share.start, row, following))
        row += share.num_tokens
    return runs
