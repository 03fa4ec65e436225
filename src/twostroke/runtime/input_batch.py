"""Turns a step's plan, integers and lists, into the tensors of one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.core.step import ScheduledRequest, StepPlan
from twostroke.layers.attention.base import AttentionMetadata
from twostroke.runtime.live_requests import LiveRequests
from twostroke.sampling.request_state import RequestState


@dataclass(slots=True)
class Batch:
    """One forward pass: the tokens of ``shares`` one after the other.

    Attributes:
        token_ids: ``[tokens]`` int64 on the device.
        positions: ``[tokens]`` int64 on the device.
        query_start: ``requests + 1`` offsets: share i has rows ``query_start[i]`` up to
            ``query_start[i + 1]``.
        sampling: Indices of the shares that draw a token, from their last rows: one row each, and
            one more for each draft.
    """

    shares: list[ScheduledRequest]
    requests: list[RequestState]
    token_ids: Tensor
    positions: Tensor
    query_start: list[int]
    sampling: list[int]
    attention: AttentionMetadata

    def rows(self, index: int) -> slice:
        """Rows of share ``index``."""
        return slice(self.query_start[index], self.query_start[index + 1])

    def drawn_rows(self, index: int) -> range:
        """Rows of share ``index`` whose logits are drawn from: of its last known token, and of its
        drafts."""
        end = self.query_start[index + 1]
        return range(end - 1 - len(self.shares[index].draft_token_ids), end)

    def known_rows(self, index: int) -> slice:
        """Rows of share ``index`` without those of its drafts."""
        start, end = self.query_start[index], self.query_start[index + 1]
        return slice(start, end - len(self.shares[index].draft_token_ids))


def _no_rows() -> Batch:
    none, no_table = np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.int32)
    rows = torch.from_numpy(none)
    nowhere = AttentionMetadata(np.zeros(1, dtype=np.int64), none, no_table, rows)
    return Batch([], [], rows, rows, [0], [], nowhere)


NO_ROWS = _no_rows()  # of a step that computes nothing


class InputBatch:
    """Makes each step's tensors from its plan.

    It keeps one row of block table per live request: a step writes only what has changed.

    Args:
        max_blocks: Columns of the table at first; they grow when a plan needs more.
        block_size: Tokens per block.
        device: Where the tensors go.
        windows: The window of each group of layers; ``core.kv_groups`` says how the groups' tables
            lie in a row.
        num_rows: Rows of the table at first; they grow, too.
    """

    def __init__(
        self,
        max_blocks: int,
        block_size: int,
        device: torch.device,
        windows: Sequence[int | None] = (None,),
        num_rows: int = 64,
    ) -> None:
        self._windows = windows
        self._table: NDArray[np.int32] = np.zeros((num_rows, max_blocks), dtype=np.int32)
        self._rows: dict[str, int] = {}
        self._num_filled: dict[int, int] = {}  # by row: entries of the table that plans have filled
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._block_size = block_size
        self._device = device

    @property
    def num_live(self) -> int:
        """Requests that have a row."""
        return len(self._rows)

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests that lost their blocks; unknown ids are requests that never ran."""
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self._num_filled.pop(row, None)
                self._free_rows.append(row)

    def build(self, plan: StepPlan, requests: LiveRequests) -> Batch:
        """The tensors of ``plan``, whose ``scheduled`` is not empty.

        Args:
            requests: Up to date with the plan.
        """
        shares = list(plan.scheduled.values())
        rows = [self._update_row(share) for share in shares]
        counts = np.array([share.num_tokens for share in shares])
        starts = np.array([share.start for share in shares])
        query_start = np.concatenate(([0], np.cumsum(counts)))
        token_ids: list[int] = []
        for share in shares:
            token_ids += requests.input_tokens(share)
        shifts = np.repeat(starts - query_start[:-1], counts)  # [tokens]
        positions = np.arange(query_start[-1]) + shifts  # [tokens]
        metadata = self._metadata(rows, query_start, starts, counts, positions)
        return Batch(
            shares,
            [requests[share.request_id] for share in shares],
            self.to_device(np.array(token_ids, dtype=np.int64)),
            self.to_device(positions),
            query_start.tolist(),
            [index for index, share in enumerate(shares) if share.samples],
            metadata,
        )

    def _metadata(
        self,
        rows: Sequence[int],
        query_start: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> AttentionMetadata:
        """Where the tokens lie. Tables end with the last block of any of these requests."""
        filled = max(self._num_filled.get(row, 0) for row in rows)
        table = self._table[rows, :filled]  # [requests, blocks], the groups' side by side
        owners, size = np.repeat(np.arange(len(starts)), counts), self._block_size
        ends, num_groups = starts + counts, len(self._windows)
        groups, all_slots = list[AttentionMetadata](), list[NDArray[np.int64]]()
        for group, window in enumerate(self._windows):
            own = table[:, group::num_groups]
            if window is not None:
                own = _without_unseen(own, np.maximum(starts - window + 1, 0) // size)
            own = np.ascontiguousarray(own)
            blocks = own[owners, positions // size]
            slots = blocks.astype(np.int64) * size + positions % size
            all_slots.append(slots)
            on_device = self.to_device(slots)
            groups.append(AttentionMetadata(query_start, ends, own, on_device))
        if num_groups == 1:
            return groups[0]
        side_by_side = self.to_device(np.stack(all_slots, axis=1))
        return AttentionMetadata(query_start, ends, table, side_by_side, groups)

    def _update_row(self, share: ScheduledRequest) -> int:
        if share.request_id not in self._rows:
            self._rows[share.request_id] = self._take_row()
        row, start = self._rows[share.request_id], share.first_new_block
        end = start + len(share.new_block_ids)
        if end > self._table.shape[1]:
            wanted = -(-end // len(self._windows)) * len(self._windows)
            self._table = np.pad(self._table, ((0, 0), (0, wanted - self._table.shape[1])))
        if share.new_block_ids:
            self._table[row, start:end] = share.new_block_ids
            self._num_filled[row] = end
        return row

    def _take_row(self) -> int:
        if not self._free_rows:
            count = len(self._table)
            self._table = np.pad(self._table, ((0, count), (0, 0)))
            self._free_rows = list(range(2 * count - 1, count - 1, -1))
        return self._free_rows.pop()

    def to_device(self, array: NDArray[np.int64]) -> Tensor:
        """An array as a tensor where the others are."""
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":  # else the transfer waits for what runs there
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _without_unseen(table: NDArray[np.int32], first: NDArray[np.int64]) -> NDArray[np.int32]:
    """``table`` with each request's block number ``first`` in place of all before it.

    Those were given back and may hold what a failing request just wrote. Kernels that read some
    keys before a window, to mask them, then read the request's own.
    """
    columns = np.maximum(np.arange(table.shape[1]), first[:, None])
    return np.take_along_axis(table, columns, axis=1)
