"""Bytes between a GPU and the host: through pinned memory, on a stream of their own."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class HostCopies(Protocol):
    """Moves rows of bytes. One thread calls everything."""

    def to_host(self, data: Tensor) -> Tensor:
        """``data`` on the host, complete; valid until the next call."""
        ...

    def room(self, rows: int, width: int) -> Tensor:
        """uint8 ``[rows, width]`` on the host, to be filled and given to ``to_device`` next."""
        ...

    def to_device(self, data: Tensor) -> Tensor:
        """What ``room`` gave, as what is computed next sees it; the host does not wait for it."""
        ...


class SameMemory:
    """A CPU's: there is nothing to move."""

    def to_host(self, data: Tensor) -> Tensor:
        return data

    def room(self, rows: int, width: int) -> Tensor:
        return torch.empty((rows, width), dtype=torch.uint8)

    def to_device(self, data: Tensor) -> Tensor:
        return data


class PinnedCopies:
    """A GPU's, see ``HostCopies``.

    What comes from the device waits for all that was started there, since it may have been computed
    by that. What goes there crosses beside it, and is waited for by what comes after.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._out, self._in = (torch.empty(0, dtype=torch.uint8) for _ in range(2))
        self._left: torch.cuda.Event | None = None  # when ``_in`` may be filled again

    def to_host(self, data: Tensor) -> Tensor:
        self._out, target = _part(self._out, *data.shape)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(data, non_blocking=True)
        data.record_stream(self._stream)
        self._stream.synchronize()
        return target

    def room(self, rows: int, width: int) -> Tensor:
        if self._left is not None:
            self._left.synchronize()
        self._in, target = _part(self._in, rows, width)
        return target

    def to_device(self, data: Tensor) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            moved = data.to(self._device, non_blocking=True)
        self._left = self._stream.record_event()
        current.wait_event(self._left)
        moved.record_stream(current)
        return moved


def host_copies(device: torch.device) -> HostCopies:
    """What moves bytes between ``device`` and the host."""
    return PinnedCopies(device) if device.type == "cuda" else SameMemory()


def _part(memory: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Pinned memory that is large enough, and its first bytes as ``[rows, width]``."""
    if memory.numel() < rows * width:
        memory = torch.empty(rows * width, dtype=torch.uint8, pin_memory=True)
    return memory, memory[: rows * width].view(rows, width)
