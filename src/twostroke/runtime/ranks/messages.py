"""What the first of several ranks tells the others: plain data, which has a wire form (msgspec).

A rank that follows knows of no request. It gets the arrays of each pass, and runs it over its share
of the model and of the KV cache. So nothing that happens to a request can part the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from twostroke.core.config import EngineConfig
from twostroke.core.errors import ErrorMessage
from twostroke.layers.attention.base import AttentionMetadata


class StartRank(msgspec.Struct, frozen=True, tag=True):
    """Which share of which model to load.

    Attributes:
        file: Where the ranks meet, see ``Ranks.join``.
        device: This rank's own.
        scores_pairs: See ``load_model``.
        log_level: One of the numbers of ``logging``.
    """

    config: EngineConfig
    rank: int
    file: str
    device: str
    max_model_len: int
    scores_pairs: bool
    log_level: int


class RankIsHere(msgspec.Struct, frozen=True, tag=True):
    """It is about to meet the others."""


class RankLoaded(msgspec.Struct, frozen=True, tag=True):
    """It has its share of the weights."""


class BlocksAllocated(msgspec.Struct, frozen=True, tag=True):
    """It has its share of the KV cache."""


class RankRefused(msgspec.Struct, frozen=True, tag=True):
    """It cannot be started, or lacks the memory for its share of the KV cache."""

    error: ErrorMessage


class AllocateBlocks(msgspec.Struct, frozen=True, tag=True):
    """Allocate its share of the KV cache."""

    num_blocks: int


class Tables(msgspec.Struct, frozen=True, array_like=True):
    """``AttentionMetadata`` in bytes."""

    query_start: bytes
    context_lens: bytes
    block_table: bytes
    slots: bytes
    groups: list[Tables] = []

    @classmethod
    def of(cls, metadata: AttentionMetadata) -> Tables:
        return cls(
            metadata.query_start.tobytes(),
            metadata.context_lens.tobytes(),
            metadata.block_table.tobytes(),
            bytes_of(metadata.slots),
            [cls.of(group) for group in metadata.groups],
        )

    def metadata(self, device: torch.device) -> AttentionMetadata:
        context_lens = np.frombuffer(bytearray(self.context_lens), np.int64)
        table = np.frombuffer(bytearray(self.block_table), np.int32)
        slots = numbers_of(self.slots, device)
        groups = [group.metadata(device) for group in self.groups]
        return AttentionMetadata(
            np.frombuffer(bytearray(self.query_start), np.int64),
            context_lens,
            table.reshape(len(context_lens), -1),
            slots.view(-1, len(groups)) if groups else slots,
            groups,
        )


class RunPass(msgspec.Struct, frozen=True, tag=True):
    """Run the layers; int64 numbers in bytes. The first rank computes the same."""

    token_ids: bytes
    positions: bytes
    tables: Tables
    rows: bytes | None


class MakeLogits(msgspec.Struct, frozen=True, tag=True):
    """Score the hidden states that the first rank gives."""

    num_rows: int


class CopyBlocks(msgspec.Struct, frozen=True, tag=True):
    """See ``KVTensors.copy_blocks``."""

    copies: Sequence[tuple[int, int]]


class ZeroSlots(msgspec.Struct, frozen=True, tag=True):
    """See ``KVTensors.zero_slots``."""

    slots: bytes
    groups: int


class CheckFinite(msgspec.Struct, frozen=True, tag=True):
    """See ``KVTensors.are_finite``; the ranks agree on it."""

    slots: bytes
    groups: int


RankOrder = AllocateBlocks | RunPass | MakeLogits | CopyBlocks | ZeroSlots | CheckFinite
RankAnswer = RankIsHere | RankLoaded | BlocksAllocated | RankRefused


def bytes_of(numbers: Tensor) -> bytes:
    """Int64 numbers."""
    return numbers.cpu().numpy().tobytes()


def numbers_of(data: bytes, device: torch.device, groups: int = 0) -> Tensor:
    """Int64 ``[numbers]``, or ``[numbers / groups, groups]``."""
    numbers = torch.frombuffer(bytearray(data), dtype=torch.int64) if data else _NO_NUMBERS
    return (numbers.view(-1, groups) if groups else numbers).to(device)


_NO_NUMBERS = torch.empty(0, dtype=torch.int64)
