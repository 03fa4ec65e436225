"""A list of (row, token) pairs with a value each: how sparse edits of a batch's logits reach the device at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor


class Pairs:
    """Collects single logits to read or change; no pair may be added twice where values are written back.

    Args:
        vocab_size: Tokens outside ``[0, vocab_size)`` are left out: they have no logit, and an index out of range
            would end a CUDA process.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: list[int] = []
        self._tokens: list[int] = []
        self._values: list[float] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int, tokens: Collection[int], values: Iterable[float] | None = None) -> None:
        """Add one pair for each of ``tokens``; ``values`` default to zero."""
        for token, value in zip(tokens, values if values is not None else (0.0 for _ in tokens), strict=True):
            if 0 <= token < self._vocab_size:
                self._rows.append(row)
                self._tokens.append(token)
                self._values.append(value)

    def index(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and tokens, int64 [pairs] each: ``logits[pairs.index(device)]`` is [pairs]."""
        both = torch.tensor([self._rows, self._tokens], dtype=torch.int64).to(device, non_blocking=True)
        return both[0], both[1]

    def values(self, device: torch.device) -> Tensor:
        """float32 [pairs]."""
        return torch.tensor(self._values, dtype=torch.float32).to(device, non_blocking=True)
