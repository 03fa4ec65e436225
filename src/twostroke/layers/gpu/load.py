"""Whether the Triton kernels can run, and with what."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from twostroke.layers.gpu.operators import GpuOperators

# Triton's own switch: kernels run in its interpreter, on a CPU. Slow; for tests.
INTERPRETER = "TRITON_INTERPRET"
OVERLAPPING = (9, 0)  # compute capability of GPUs whose kernels may overlap


def load_operators(device: torch.device) -> GpuOperators | None:
    """The operators for tensors on ``device``; ``None``: PyTorch's do.

    Triton comes with PyTorch's builds for CUDA, and is imported here first.
    """
    if device.type == "cuda":
        return _operators(overlaps=torch.cuda.get_device_capability(device) >= OVERLAPPING)
    return _operators(is_interpreting=True) if is_interpreting() else None


@functools.cache
def _operators(*, is_interpreting: bool = False, overlaps: bool = False) -> GpuOperators | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from twostroke.layers.gpu.operators import GpuOperators

    return GpuOperators(is_interpreting=is_interpreting, overlaps=overlaps)


def is_interpreting() -> bool:
    return os.environ.get(INTERPRETER, "0") not in ("", "0")
