"""Sparse edits of a batch's logits: (row, token) pairs, sent to the device at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twostroke.sampling.transfer import moved


class Pairs:
    """Collects single logits to read or change.

    No pair may be added twice where values are written back.

    They are kept as arrays: as Python numbers, the tokens that a penalty has seen cost more than a
    small model's pass.

    Args:
        vocab_size: Tokens outside ``[0, vocab_size)`` are left out: they have no logit, and an
            index out of range would end a CUDA process.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: list[int] = []  # of each array of tokens
        self._tokens: list[npt.NDArray[np.int64]] = []
        self._values: list[npt.NDArray[np.float32]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(
        self, row: int, tokens: Collection[int] | memoryview, values: Iterable[float] | float = 0.0
    ) -> None:
        """Add one pair for each of ``tokens``; ``values`` are as many, or one for all."""
        if not (count := len(tokens)):
            return
        if isinstance(tokens, memoryview):
            ids = np.frombuffer(tokens, dtype=np.int64)
        else:
            ids = np.fromiter(tokens, np.int64, count)
        if isinstance(values, Iterable):
            numbers = np.fromiter(values, np.float32, count)
        else:
            numbers = np.full(count, values, dtype=np.float32)
        if ids.min() < 0 or ids.max() >= self._vocab_size:
            inside = (ids >= 0) & (ids < self._vocab_size)
            ids, numbers = ids[inside], numbers[inside]
        self._rows.append(row)
        self._tokens.append(ids)
        self._values.append(numbers)
        self._length += len(ids)

    def index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and tokens, int64 [pairs] each: ``logits[pairs.index(device)]`` is [pairs]."""
        rows = np.repeat(np.array(self._rows, dtype=np.int64), list(map(len, self._tokens)))
        both = moved(torch.from_numpy(np.stack([rows, np.concatenate(self._tokens)])), device)
        return both[0], both[1]

    def values(self, device: torch.device) -> Tensor:
        """float32 [pairs]."""
        return moved(torch.from_numpy(np.concatenate(self._values)), device)
