"""What stands for recorded passes where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from twostroke.layers.attention.base import AttentionMetadata
from twostroke.layers.attention.sdpa import SdpaBackend


class PreparedAnew:
    """Fixed tables for PyTorch's attention, which prepares each step when it is run."""

    kernel_cache = None

    def __init__(self, backend: SdpaBackend) -> None:
        self._backend = backend
        self._metadata: AttentionMetadata | None = None

    def attention(self, rows: int) -> Any:
        return self

    def fill(self, metadata: AttentionMetadata, rows: int) -> None:
        assert len(metadata.context_lens) == rows, "there is a graph for every number"
        self._attention = self._backend.prepare(metadata)

    def __call__(self, layer: int, *args: Any) -> Tensor:
        return self._attention(layer, *args)


def run_each_time(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """In place of a recording; into one buffer, as a graph does."""
    buffer: list[Tensor] = []

    def again() -> Tensor:
        out = run()
        if not buffer:
            buffer.append(torch.empty_like(out))
        return buffer[0].copy_(out)

    return again
