"""Small tensors on their way to where the logits are."""

from __future__ import annotations

from collections.abc import Sequence

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
