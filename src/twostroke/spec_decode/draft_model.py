"""Drafts of a smaller model (Leviathan et al. 2023; Chen et al. 2023).

Its keys and values lie in tensors of its own, in blocks of the same ids: the target's block tables,
prefix hits and copies are its own as well. It computes a token when it first needs it, so a request
that never drafts costs it nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.spec_decode.base import Continuation, FinishedPass
from twostroke.spec_decode.greedy import GreedyDrafter, Unfinished

# Known tokens that are computed at once before a request drafts for the first time.
MAX_TOKENS = 2048


class _Ahead(NamedTuple):
    """Drafts whose keys and values were computed, after the first ``end`` tokens."""

    end: int
    drafts: list[int]

    def num_right(self, tokens: Sequence[int]) -> int:
        """How many came true, of those before the last token."""
        count = 0
        for draft, token in zip(self.drafts, tokens[self.end : -1]):
            if draft != token:
                break
            count += 1
        return count


class DraftModelProposer:
    """A ``Proposer``. What a block holds of the draft model is known per block, whichever request
    computed it.

    Args:
        drafter: Runs the draft model, on keys and values of its own.
        copy_blocks: Copies whole blocks of these, (source, target), as the target's are copied.
        num_blocks: Blocks that there are.
        block_size: Tokens per block.
    """

    reads_all_rows = False

    def __init__(
        self,
        drafter: GreedyDrafter,
        copy_blocks: Callable[[Sequence[tuple[int, int]]], None],
        num_blocks: int,
        block_size: int,
    ) -> None:
        self._drafter = drafter
        self._copy_blocks = copy_blocks
        self._block_size = block_size
        # How many of a block's first slots hold keys and values of the tokens that it stands for.
        self._filled = np.zeros(num_blocks, dtype=np.int32)
        self._ahead: dict[str, _Ahead] = {}

    def update(self, plan: StepPlan) -> None:
        for request_id in plan.released:
            self._ahead.pop(request_id, None)
        for load in plan.block_loads:  # tiers keep the target's keys and values alone
            if not load.is_of_states:
                self._filled[load.block_ids] = 0
        for share in plan.scheduled.values():
            self._forget_new_blocks(share)
        if plan.block_copies:
            self._copy_blocks(plan.block_copies)
            for source, target in plan.block_copies:
                self._filled[target] = self._filled[source]

    def propose(self, step: FinishedPass) -> dict[str, list[int]]:
        going = step.continuations()
        if not going:
            return {}
        unfinished = [self._unfinished(step, each) for each in going]
        drafts = self._drafter.draft(unfinished)
        for each, run, guesses in zip(going, unfinished, drafts):
            self._fill(run.blocks, run.start, run.end)
            self._ahead[each.request.request_id] = _Ahead(run.end, guesses[:-1])
        return {each.request.request_id: drafts[i] for i, each in enumerate(going)}

    def _forget_new_blocks(self, share: ScheduledRequest) -> None:
        """New blocks hold nothing, but for cached prefixes and copies: those begin the table."""
        num_kept = -(-share.start // self._block_size) - share.first_new_block
        fresh = share.new_block_ids[max(0, num_kept) :]
        if fresh:
            self._filled[fresh] = 0

    def _unfinished(self, step: FinishedPass, each: Continuation) -> Unfinished:
        """What the draft model lacks of a request; if that is much, it computes most of it."""
        request, new, most, place = each
        tokens, blocks = [*request.token_ids, *new], step.block_table[place]
        start = min(self._num_filled(blocks, len(tokens)), len(tokens) - 1)
        if (ahead := self._ahead.get(request.request_id)) is not None:
            came_true = ahead.end + ahead.num_right(tokens)
            self._fill(blocks, min(start, ahead.end), came_true)
            start = max(start, came_true)
        while len(tokens) - start > MAX_TOKENS:
            part = Unfinished(tokens[start : start + MAX_TOKENS], start, blocks, 1)
            self._drafter.compute(part)
            self._fill(blocks, part.start, part.end)
            start = part.end
        return Unfinished(tokens[start:], start, blocks, most)

    def _num_filled(self, blocks: NDArray[np.int32], num_tokens: int) -> int:
        """How many positions, from the first on, have keys and values of the draft model."""
        size = self._block_size
        filled = self._filled[blocks[: -(-num_tokens // size)]]
        partly = np.flatnonzero(filled < size)
        if not len(partly):
            return len(filled) * size
        return int(partly[0]) * size + int(filled[partly[0]])

    def _fill(self, blocks: NDArray[np.int32], start: int, end: int) -> None:
        """Note what was computed of known tokens; drafts are noted once they came true."""
        size = self._block_size
        for index in range(start // size, -(-end // size)):
            block = blocks[index]
            self._filled[block] = max(self._filled[block], min(size, end - index * size))
