"""Small tensors on their way to where the logits are, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``; what runs there is not waited for."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def to_tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """``values`` on the device."""
    return moved(torch.tensor(values, dtype=dtype), device)


def start_transfer(tensor: Tensor) -> Callable[[], list[int]]:
    """Start to copy ``tensor`` [n] to the host; the result waits for that copy alone."""
    arrived: torch.cuda.Event | None = None
    if tensor.device.type == "cuda":
        target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        target.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
    else:
        target = tensor.clone()

    def wait() -> list[int]:
        if arrived is not None:
            arrived.synchronize()
        return target.tolist()

    return wait
