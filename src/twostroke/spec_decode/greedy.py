"""Drafts of a model: its likeliest token, then the one after it, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twostroke.layers.attention.base import Attention, AttentionBackend
from twostroke.models.decoder import Decoder
from twostroke.spec_decode.draft_pass import DraftPass, make_draft_pass


class Unfinished(NamedTuple):
    """A request to go on with.

    Attributes:
        token_ids: Known tokens whose keys and values are missing, at least one; the last known one
            is the last of them.
        start: Position of the first of them.
        blocks: ``[blocks]``: its row of the block table, with room for the drafts but the last.
        max_drafts: 1 or more.
    """

    token_ids: Sequence[int]
    start: int
    blocks: NDArray[np.int32]
    max_drafts: int

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


class GreedyDrafter:
    """Runs a model ahead, for several requests together.

    Args:
        model: Its keys and values are those of ``backend``.
        block_size: Tokens per block.
    """

    def __init__(self, model: Decoder, backend: AttentionBackend, block_size: int) -> None:
        self._model = model
        self._backend = backend
        self._block_size = block_size
        self._compiled = model.compiled_drafting()

    def draft(self, requests: Sequence[Unfinished]) -> list[list[int]]:
        """Draft for each request up to its limit. Caches keys and values of all but the last."""
        order = sorted(range(len(requests)), key=lambda i: -requests[i].max_drafts)
        first = self._first_pass([requests[i] for i in order])
        lengths = [requests[i].max_drafts for i in order]
        cache = self._attention(first).kernel_cache
        if self._compiled is not None and cache is not None and len(cache.groups) == 1:
            drafts = self._compiled(first.tokens, first.positions, cache, first.rows, lengths)
        else:
            drafts = self._draft_singly(first, lengths)
        return [draft for _, draft in sorted(zip(order, drafts))]

    def compute(self, request: Unfinished) -> None:
        """Write the keys and values of known tokens, and guess nothing."""
        self._likeliest(self._first_pass([request]))

    def _draft_singly(self, first: DraftPass, lengths: Sequence[int]) -> list[list[int]]:
        """One pass after the other; ``lengths`` fall."""
        drafts = [[token] for token in self._likeliest(first)]
        for count in range(1, lengths[0]):
            active = sum(length > count for length in lengths)
            step = self._pass(
                [draft[-1] for draft in drafts[:active]],
                first.ends[:active] + count - 1,
                np.ones(active, dtype=np.int64),
                first.table[:active],
            )
            for draft, token in zip(drafts, self._likeliest(step)):
                draft.append(token)
        return drafts

    def _first_pass(self, requests: Sequence[Unfinished]) -> DraftPass:
        return self._pass(
            [token for request in requests for token in request.token_ids],
            np.array([request.start for request in requests]),
            np.array([len(request.token_ids) for request in requests]),
            np.stack([request.blocks for request in requests]),
        )

    def _pass(
        self,
        token_ids: Sequence[int],
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        table: NDArray[np.int32],
    ) -> DraftPass:
        size, device = self._block_size, self._model.device
        return make_draft_pass(token_ids, starts, lengths, table, size, device)

    def _attention(self, step: DraftPass) -> Attention:
        return self._backend.prepare(step.metadata)

    def _likeliest(self, step: DraftPass) -> list[int]:
        """Run a pass; the likeliest next token of each request."""
        hidden = self._model.forward(
            step.tokens, step.positions, self._attention(step), step.rows
        )  # [requests, hidden]
        tokens: list[int] = self._model.logits(hidden).argmax(dim=-1).tolist()
        return tokens
