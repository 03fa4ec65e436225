"""How the queries of a step, and the keys of its requests, are divided among programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twostroke.layers.attention.base import IntArray

# Requests with up to so many queries split their keys among programs.
FEW_TOKENS = 8
# Programs among which the keys of one request are split at most, and keys of one at least. These
# are constants: how a sum is split decides how it is rounded.
SPLITS, MIN_SPLIT = 16, 128


@dataclass(frozen=True, slots=True)
class Tiles:
    """Queries that one launch takes.

    Attributes:
        requests, starts: int32 ``[tiles]``: each tile's request, and its first query there.
        first_rows: int32 ``[tiles]``: where each tile's tokens begin in ``rows``.
        rows: int32 ``[rows]``: the tokens of all tiles, where their keys are split.
    """

    requests: Tensor
    starts: Tensor
    first_rows: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """A step as the kernels read it, on the device: integers of 32 bits, but for ``slots``.

    Attributes:
        query_start, context_lens, block_table, slots: As in ``AttentionMetadata``.
        few: Tiles of requests with few queries.
        many: Tiles of the others.
    """

    query_start: Tensor
    context_lens: Tensor
    block_table: Tensor
    slots: Tensor
    few: Tiles | None
    many: Tiles | None


class TileShape(NamedTuple):
    """Rows (queries times heads) and keys of a step of a program, its warps, steps in flight."""

    rows: int
    keys: int
    warps: int
    stages: int


def tables_on(
    device: torch.device, arrays: Sequence[NDArray[np.signedinteger[Any]]]
) -> Sequence[Tensor]:
    """Arrays of one dimension as int32 on the device, in one transfer that nothing waits for."""
    joined = torch.from_numpy(np.concatenate(arrays, dtype=np.int32, casting="same_kind"))
    if device.type == "cuda":
        joined = joined.pin_memory()
    moved = joined.to(device, non_blocking=True)
    return torch.split(moved, [len(array) for array in arrays])


def tiles_of(
    lens: IntArray, requests: IntArray, queries: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Tiles of so many queries: their requests, where in these each starts, and where in all."""
    counts = -(-lens[requests] // queries)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    starts = (np.arange(counts.sum()) - first) * queries
    before = np.cumsum(lens[requests]) - lens[requests]
    return np.repeat(requests, counts), starts, np.repeat(before, counts) + starts
