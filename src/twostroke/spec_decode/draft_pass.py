"""The tensors of a pass that drafts, over tokens of several requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.layers.attention.base import AttentionMetadata


class DraftPass(NamedTuple):
    """One pass.

    Attributes:
        tokens: ``[tokens]``, those of one request after those of another.
        positions: ``[tokens]``, in the same order.
        rows: Which tokens are the last of their requests; ``None``: all.
        table: ``[requests, blocks]``.
        ends: ``[requests]``, the position after the last token of each.
    """

    tokens: Tensor
    positions: Tensor
    rows: Tensor | None
    table: NDArray[np.int32]
    ends: NDArray[np.int64]
    metadata: AttentionMetadata


def make_draft_pass(
    token_ids: Sequence[int],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    table: NDArray[np.int32],
    block_size: int,
    device: torch.device,
) -> DraftPass:
    """The tensors of a pass over ``lengths`` tokens of each request, from ``starts`` on."""

    def on_device(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    query_start = np.concatenate(([0], np.cumsum(lengths)))
    positions = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], lengths)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    blocks = table[owners, positions // block_size].astype(np.int64)
    slots = blocks * block_size + positions % block_size
    ends = starts + lengths
    several = query_start[-1] > len(lengths)
    return DraftPass(
        on_device(np.array(token_ids, dtype=np.int64)),
        on_device(positions),
        on_device(query_start[1:] - 1) if several else None,
        table,
        ends,
        AttentionMetadata(query_start, ends, table, on_device(slots)),
    )
